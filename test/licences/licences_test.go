// Package licences lists the licences of what our programs are linked with, and fails for
// one that doesn't go with ours.
package licences

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/licensecheck"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/harness"
)

const list = "../../docs/LICENCES.md"

const head = `<!-- Generated from the code by ` + "`make generate`" + `. -->
# Licences

gpuslice is under Apache-2.0. The programs are linked with the modules below, each under the licence in its own files.
The container image also contains glibc's libraries (LGPL-2.1), from the distribution on which it is built. The limiter
and the simulated driver are linked only with libc. Tools and tests use more modules, which are not shipped.

| module | version | licence | in |
|---|---|---|---|
`

// goesWithOurs are licences of code that a program under Apache-2.0 may be linked with. The
// Mozilla licence asks for the source of changed files; none is changed here.
var goesWithOurs = []string{"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MPL-2.0"}

// programs are ours, by the directory of their module.
var programs = map[string][]string{
	"../..":                        {"./cmd/gpuslice", "./cmd/gpuslice-agent", "./cmd/gpuslice-runtime", "./cmd/kubectl-gpuslice"},
	"../../cmd/gpuslice-scheduler": {"."},
}

// module is one that is linked.
type module struct{ Path, Version, Dir string }

// The list is that of the code: `make generate` writes it.
func TestLicences(t *testing.T) {
	var page strings.Builder
	page.WriteString(head)
	linked, in := linkedModules(t)
	for _, path := range slices.Sorted(maps.Keys(linked)) {
		m := linked[path]
		ids := licencesOf(t, m.Dir)
		if assert.NotEmpty(t, ids, "%s has no licence that is known: look at %s", path, m.Dir) {
			for _, id := range ids {
				assert.Contains(t, goesWithOurs, id, "%s %s", path, m.Version)
			}
		}
		fmt.Fprintf(&page, "| %s | %s | %s | %s |\n", path, m.Version, strings.Join(ids, ", "), strings.Join(in[path], ", "))
	}
	require.Greater(t, len(linked), 20)
	golden.Check(t, list, page.String())
}

var noticesFile = flag.String("notices", "", "write the notices of third parties to this file")

// Each linked module has a text to distribute with it: its licence, and the NOTICE that Apache-2.0 asks for.
// `make notices` writes them to the file that is in the image and in each archive and package.
func TestNotices(t *testing.T) {
	linked, in := linkedModules(t)
	root, err := filepath.EvalSymlinks(strings.TrimSpace(goroot(t)))
	require.NoError(t, err)
	linked["the standard library of Go"] = module{Version: runtime.Version(), Dir: root}
	in["the standard library of Go"] = []string{"all"}
	var page strings.Builder
	page.WriteString("gpuslice is under Apache-2.0. Its programs contain the modules below.\n")
	for _, path := range slices.Sorted(maps.Keys(linked)) {
		m := linked[path]
		fmt.Fprintf(&page, "\n%s\n%s %s (in %s)\n", strings.Repeat("=", 100), path, m.Version, strings.Join(in[path], ", "))
		texts := legalTexts(t, m.Dir)
		require.NotEmpty(t, texts, path)
		for _, file := range texts {
			text, err := os.ReadFile(filepath.Join(m.Dir, file))
			require.NoError(t, err)
			fmt.Fprintf(&page, "\n---- %s\n\n%s\n", file, strings.TrimRight(string(text), "\n"))
		}
	}
	require.Contains(t, page.String(), "Copyright 2009 The Go Authors")
	require.Contains(t, page.String(), "\n---- NOTICE\n")
	if *noticesFile != "" {
		require.NoError(t, os.MkdirAll(filepath.Dir(*noticesFile), 0o755))
		require.NoError(t, os.WriteFile(*noticesFile, []byte(page.String()), 0o644))
	}
}

func goroot(t *testing.T) string {
	out, err := harness.Run(context.Background(), nil, "go", "env", "GOROOT")
	require.NoError(t, err)
	return out
}

// legalTexts are the files at a module's root that its licence asks to distribute.
func legalTexts(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		name := strings.ToUpper(entry.Name())
		if entry.Type().IsRegular() && (strings.HasPrefix(name, "LICEN") || strings.HasPrefix(name, "COPYING") || strings.HasPrefix(name, "NOTICE")) && !strings.HasSuffix(name, ".DOCS") {
			names = append(names, entry.Name())
		}
	}
	return names
}

// builds are the environments in which a program is built: kubectl's plugin is for every system.
func builds(program string) (envs [][]string) {
	if program != "kubectl-gpuslice" {
		return [][]string{nil}
	}
	for _, system := range []string{"linux", "darwin", "windows"} {
		for _, arch := range []string{"amd64", "arm64"} {
			envs = append(envs, []string{"CGO_ENABLED=0", "GOOS=" + system, "GOARCH=" + arch})
		}
	}
	return envs
}

// linkedModules are the modules of packages that the programs are linked with, by path, and
// the programs of each.
func linkedModules(t *testing.T) (map[string]module, map[string][]string) {
	linked, in := map[string]module{}, map[string][]string{}
	for _, dir := range slices.Sorted(maps.Keys(programs)) {
		for _, program := range programs[dir] {
			name, err := filepath.Abs(filepath.Join(dir, program))
			require.NoError(t, err)
			out := ""
			for _, env := range builds(filepath.Base(name)) {
				linked, err := harness.Run(context.Background(), env, "go", "-C", dir, "list", "-deps", "-f", "{{with .Module}}{{.Path}}\t{{.Version}}\t{{.Dir}}\t{{.Main}}\t{{with .Replace}}{{.Version}}{{end}}{{end}}", program)
				require.NoError(t, err)
				out += linked
			}
			seen := map[string]bool{}
			for line := range strings.Lines(out) {
				fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
				if len(fields) != 5 || seen[fields[0]] || fields[3] == "true" || strings.HasPrefix(fields[0], "github.com/gpuslice/") {
					continue
				}
				seen[fields[0]] = true
				m := module{Path: fields[0], Version: fields[1], Dir: fields[2]}
				if fields[4] != "" {
					m.Version = fields[4]
				}
				if other, known := linked[m.Path]; known && other.Version != m.Version {
					m.Version = other.Version + ", " + m.Version
				}
				linked[m.Path] = m
				in[m.Path] = append(in[m.Path], filepath.Base(name))
			}
		}
	}
	return linked, in
}

// licencesOf are the licences in the files at a module's root. Text beside a licence that is none, such as a
// list of authors, changes nothing.
func licencesOf(t *testing.T, dir string) []string {
	found := map[string]bool{}
	for _, name := range legalTexts(t, dir) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		for _, match := range licensecheck.Scan(text).Match {
			found[match.ID] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
