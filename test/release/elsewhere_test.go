//go:build root

package release

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// elsewhere is a copy of the files of the repository below some of its directories, in another directory.
func elsewhere(t *testing.T, root string, paths ...string) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", append([]string{"-C", root, "ls-files", "-z", "--"}, paths...)...)
	out, err := list.Output()
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "another-directory-with-a-longer-name")
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o755))
	}
	return dir
}

// requireSame compares a program with the one of `make build`.
func requireSame(t *testing.T, built, elem, name string) {
	t.Helper()
	path, err := harness.Artefact(elem, name)
	require.NoError(t, err)
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(built, name))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "%s has %d bytes, and %d if it is built in another directory: are the sources newer than the build?", name, len(want), len(got))
}

// What is loaded into containers is the same if it is built in another directory.
func TestLimiterBuiltElsewhere(t *testing.T) {
	root, err := harness.Repository()
	require.NoError(t, err)
	dir := elsewhere(t, root, "limiter", "testdata/workloads", "testdata/simdriver")
	for _, part := range []string{"src", "front", "probe"} {
		_, err := harness.Run(t.Context(), nil, "make", "--no-print-directory", "--jobs=2", "-C", filepath.Join(dir, "limiter", part), "OUT="+filepath.Join(dir, "build"))
		require.NoError(t, err)
	}
	for _, name := range []string{"libvgpu.so", "libvgpu-cuda.so", "libvgpu-nvml.so", "gpuslice-probe"} {
		requireSame(t, filepath.Join(dir, "build/lib"), "lib", name)
	}
}

// What runs as root in containers is the same if it is built in another directory. The other programs have the same flags.
func TestRuntimeBuiltElsewhere(t *testing.T) {
	root, err := harness.Repository()
	require.NoError(t, err)
	path, err := harness.Artefact("bin", "gpuslice-runtime")
	require.NoError(t, err)
	// It fails if there is no low-level runtime, after it has printed its version.
	out, _ := exec.CommandContext(t.Context(), path, "--version").Output()
	version := regexp.MustCompile(` version (v\S+)\n`).FindStringSubmatch(string(out))
	require.NotNil(t, version, "%s", out)
	dir := elsewhere(t, root, "*.go", "*.yaml", "*.json", "*.md", "go.mod", "go.sum")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-X github.com/gpuslice/gpuslice/cmd/internal/version.version="+version[1],
		"-o", filepath.Join(dir, "build", "gpuslice-runtime"), "./cmd/gpuslice-runtime")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-tags=nri_no_wasm,root -buildvcs=false -trimpath")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	requireSame(t, filepath.Join(dir, "build"), "bin", "gpuslice-runtime")
}
