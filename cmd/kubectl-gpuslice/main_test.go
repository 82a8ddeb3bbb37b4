package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

// command is a go command for a platform, without cgo.
func command(platform string, args ...string) *exec.Cmd {
	system, architecture, _ := strings.Cut(platform, "/")
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+architecture)
	return cmd
}

// The program imports nothing that needs Linux or cgo, and none of what makes it large.
func TestImports(t *testing.T) {
	const module = "github.com/gpuslice/gpuslice/"
	for _, platform := range platforms {
		list := command(platform, "list", "-deps", "-f", "{{.ImportPath}} {{len .CgoFiles}}", ".")
		var problems strings.Builder // and what is downloaded
		list.Stderr = &problems
		out, err := list.Output()
		require.NoError(t, err, "%s: %s", platform, problems.String()) // a package without files for the platform is an error
		for line := range strings.Lines(string(out)) {
			path, cgo, _ := strings.Cut(strings.TrimSpace(line), " ")
			assert.Equal(t, "0", cgo, "%s: %s uses cgo", platform, path)
			for _, of := range []string{"ledger", "limiter", "nri-plugin", "oci", "deviceplugin", "agent", "monitor/node", "monitor/nodeview", "internal/procfs"} {
				path, ours := strings.CutPrefix(path, module)
				assert.False(t, ours && (path == of || strings.HasPrefix(path, of+"/")), "%s: %s is of a node", platform, path)
			}
			assert.False(t, strings.HasPrefix(path, "k8s.io/client-go/informers"), "%s: %s is not small", platform, path)
			assert.NotEqual(t, "k8s.io/client-go/kubernetes", path, "all of its groups are linked: use single ones")
		}
	}
}

// kubectl runs kubectl_complete-gpuslice with the words so far.
func TestCompletionForKubectl(t *testing.T) {
	for name, completes := range map[string]bool{
		"/usr/bin/kubectl_complete-gpuslice": true, "kubectl_complete-gpuslice.exe": true,
		"/usr/bin/kubectl-gpuslice": false, "kubectl-gpuslice.exe": false,
	} {
		got := arguments([]string{name, "describe", ""})
		want := []string{name, "describe", ""}
		if completes {
			want = slices.Insert(want, 1, "__complete")
		}
		assert.Equal(t, want, got)
	}
}
