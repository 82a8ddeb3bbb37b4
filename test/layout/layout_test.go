// Package layout keeps the table of packages in docs/ARCHITECTURE.md true, and forbids imports.
package layout

import (
	"encoding/json"
	"fmt"
	"go/doc"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/golden"
)

const (
	module   = "github.com/gpuslice/gpuslice/"
	document = "../../docs/ARCHITECTURE.md"
	begin    = "<!-- packages: made by test/layout -->\n"
	end      = "<!-- end of packages -->\n"
)

// forbidden are imports of a package (or of all below it, with "/...") that would turn the design around.
var forbidden = []struct{ from, to, why string }{
	{"...", "cmd/...", "programs are not imported"},
	{"...", "test/...", "the product does not depend on tests"},
	{"api", "*", "what components share depends on none of them"},
	{"internal/...", "grant", "internal packages are for all and know none"},
	{"internal/...", "oci/...", "internal packages are for all and know none"},
	{"grant/...", "oci/...", "a decision does not depend on how it is expressed"},
	{"grant/...", "nvidia", "a decision does not depend on how GPUs are found"},
	{"oci/...", "nri-plugin/...", "edits do not depend on the way in which they are made"},
	{"oci/...", "monitor/...", "edits do not depend on what is reported"},
	{"nri-plugin/...", "nvidia", "no NVML when a container is created"},
	{"nri-plugin/...", "k8s.io/client-go/...", "no API server when a container is created"},
	{"nri-plugin/...", "monitor/...", "the plugin does not depend on what is reported"},
	{"dra/...", "nri-plugin/...", "preparing a ResourceClaim gives no access"},
	{"dra/...", "oci/...", "preparing a ResourceClaim gives no access"},
	{"dra/prepared", "k8s.io/...", "the NRI plugin reads the records, without types of Kubernetes"},
	{"deviceplugin", "k8s.io/client-go/...", "the device plugin knows the kubelet only"},
	{"scheduler/...", "oci/...", "the scheduler runs on other machines"},
	{"scheduler/...", "nvidia", "the scheduler runs on other machines"},
	{"scheduler/...", "monitor/...", "the scheduler runs on other machines"},
	{"scheduler", "k8s.io/...", "the model of the scheduler has no types of Kubernetes"},
	{"scheduler/engine", "k8s.io/...", "the model of the scheduler has no types of Kubernetes"},
	{"scheduler/choose", "k8s.io/...", "the model of the scheduler has no types of Kubernetes"},
	{"scheduler/quota", "k8s.io/...", "the model of the scheduler has no types of Kubernetes"},
	{"scheduler/request", "k8s.io/...", "the model of the scheduler has no types of Kubernetes"},
	{"scheduler/wire", "k8s.io/...", "the model of the scheduler has no types of Kubernetes"},
	{"monitor/...", "nri-plugin", "what reports does not decide"},
}

type pkg struct {
	ImportPath, Doc string
	Imports         []string
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		for _, to := range p.Imports {
			for _, f := range forbidden {
				if matches(f.from, p.ImportPath) && matches(f.to, to) && !strings.HasPrefix(p.ImportPath, "test/") && !(f.from == "..." && strings.HasPrefix(p.ImportPath, "cmd/")) {
					t.Errorf("%s imports %s: %s", p.ImportPath, to, f.why)
				}
			}
		}
	}
}

func TestTable(t *testing.T) {
	var table strings.Builder
	table.WriteString("\n| package | what it does | imports of gpuslice |\n|---|---|---|\n")
	for _, p := range packages(t) {
		if strings.HasPrefix(p.ImportPath, "test/") {
			continue
		}
		require.NotEmpty(t, p.Doc, "package comment of %s", p.ImportPath)
		var ours []string
		for _, i := range p.Imports {
			if !strings.Contains(strings.Split(i, "/")[0], ".") && isOurs(i) {
				ours = append(ours, "`"+i+"`")
			}
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", p.ImportPath, synopsis(p.Doc), strings.Join(ours, ", "))
	}
	table.WriteString("\n")
	golden.Section(t, document, begin, end, table.String())
}

// synopsis is the first sentence of a package comment, without "Package name".
func synopsis(text string) string {
	s := new(doc.Package).Synopsis(text)
	if strings.HasPrefix(s, "Package ") || strings.HasPrefix(s, "Command ") {
		if parts := strings.SplitN(s, " ", 3); len(parts) == 3 {
			s = parts[2]
		}
	}
	return strings.ReplaceAll(s, "|", `\|`)
}

var ourPaths = map[string]bool{}

func isOurs(path string) bool { return ourPaths[path] }

func matches(pattern, path string) bool {
	switch pattern {
	case "...":
		return ourPaths[path]
	case "*": // all but the standard library
		first, _, _ := strings.Cut(path, "/")
		return ourPaths[path] || strings.Contains(first, ".")
	}
	if dir, all := strings.CutSuffix(pattern, "/..."); all {
		return path == dir || strings.HasPrefix(path, dir+"/")
	}
	return path == pattern
}

// packages are those of the module, by their paths below it.
func packages(t *testing.T) (all []pkg) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Imports", "./...")
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		ourPaths[p.ImportPath] = true
		for i := range p.Imports {
			p.Imports[i] = strings.TrimPrefix(p.Imports[i], module)
		}
		slices.Sort(p.Imports)
		all = append(all, p)
	}
	return all
}

// TestLimiterHasNoCycles: a unit of limiter/src (a.c and a.h) uses only units below it. process.h composes the state of a
// process of all units' parts.
func TestLimiterHasNoCycles(t *testing.T) {
	include := regexp.MustCompile(`#include "(\w+)\.h"`)
	uses := map[string][]string{}
	files, err := filepath.Glob("../../limiter/src/*.[ch]")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		unit := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		for _, m := range include.FindAllStringSubmatch(string(data), -1) {
			if m[1] != unit && m[1] != "process" {
				uses[unit] = append(uses[unit], m[1])
			}
		}
	}
	done := map[string]bool{}
	var visit func(unit string, path []string)
	visit = func(unit string, path []string) {
		if i := slices.Index(path, unit); i >= 0 {
			t.Fatalf("cycle: %s", strings.Join(append(path[i:], unit), " → "))
		}
		if !done[unit] {
			for _, used := range uses[unit] {
				visit(used, append(path, unit))
			}
			done[unit] = true
		}
	}
	for unit := range uses {
		visit(unit, nil)
	}
}

// The environment of a user can have an ARCH that is meant for something else.
func TestArchitectureOnlyByCommandLine(t *testing.T) {
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	build := func(environment string, arguments ...string) (string, error) {
		cmd := exec.Command("make", append([]string{"-s", "--no-print-directory", "--eval=print:;@echo $(GOARCH)$(BUILD)", "print"}, arguments...)...)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "GOARCH=", "MAKEFLAGS=", "ARCH="+environment)
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	own, err := filepath.Abs("../../build")
	require.NoError(t, err)
	for _, environment := range []string{"", other, "x86_64"} {
		out, err := build(environment)
		require.NoError(t, err, out)
		require.Equal(t, own, out, environment)
	}
	for argument, want := range map[string]string{"": own, runtime.GOARCH: own, other: other + own + "/" + other} {
		out, err := build("x86_64", "ARCH="+argument)
		require.NoError(t, err, out)
		require.Equal(t, want, out, argument)
	}
	for _, argument := range []string{"x86_64", "amd64 arm64", "../arm64"} {
		out, err := build("", "ARCH="+argument)
		require.Error(t, err)
		require.Contains(t, out, "there are amd64 and arm64", argument)
	}
}
