package oci

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rogpeppe/go-internal/diff"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/ocitest"
)

var update = flag.Bool("update", false, "rewrite the golden files of testdata")

// The GPUs of testdata/cdi/nvidia.yaml.
const (
	gpu0 = "GPU-11111111-1111-1111-1111-111111111111"
	gpu1 = "GPU-22222222-2222-2222-2222-222222222222"
	gpu2 = "GPU-33333333-3333-3333-3333-333333333333"
	mig0 = "MIG-44444444-4444-4444-4444-444444444444"
	// gpuX is a GPU that no spec has.
	gpuX = "GPU-99999999-9999-9999-9999-999999999999"
)

// testSettings are a plain node's.
func testSettings() Settings {
	return Settings{
		LibraryPath:    "/var/lib/gpuslice/lib/libvgpu-0123456789abcdef.so",
		PreloadPath:    "/var/lib/gpuslice/lib/ld.so.preload",
		NvidiaHandlers: []string{"nvidia"},
	}
}

// testStubs are installed on a node with a limiter mode other than preload.
var testStubs = Stubs{
	CUDA: "/var/lib/gpuslice/lib/libvgpu-cuda-0123456789abcdef.so",
	NVML: "/var/lib/gpuslice/lib/libvgpu-nvml-0123456789abcdef.so",
}

// testRegistry reads testdata/cdi.
func testRegistry(t testing.TB) *Registry {
	dir, err := filepath.Abs("testdata/cdi")
	require.NoError(t, err)
	r, err := NewRegistry(RegistryConfig{Dirs: []string{dir}})
	require.NoError(t, err)
	require.NoError(t, r.Err())
	return r
}

// testSpec reads one of testdata/specs.
func testSpec(t testing.TB, name string) *rspec.Spec {
	data, err := os.ReadFile(filepath.Join("testdata/specs", name+".json"))
	require.NoError(t, err)
	spec := &rspec.Spec{}
	require.NoError(t, json.Unmarshal(data, spec))
	return spec
}

// factsOf are a spec's, with a claim and a runtime handler.
func factsOf(spec *rspec.Spec, handler string) Container {
	c := ContainerOf("c0ffee", spec)
	c.Dir = "/run/gpuslice/containers/c0ffee"
	c.RuntimeHandler = handler
	return c
}

// one is a share of the first GPU.
func one(mib int64, cores int) []grant.Share {
	return []grant.Share{{UUID: gpu0, MemoryMiB: mib, CorePercent: cores}}
}

// golden compares a text with a golden file, or writes the file.
func golden(t testing.TB, name, made string) {
	t.Helper()
	path := filepath.Join("testdata/golden", name)
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(made), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "go test ./oci -update writes it")
	if diff := cmp.Diff(string(want), made); diff != "" {
		t.Errorf("%s differs (go test ./oci -update rewrites it):\n%s", path, diff)
	}
}

// changes returns the lines that differ between two documents, each group of them after the line that precedes it.
func changes(t testing.TB, root string, old, now any) string {
	t.Helper()
	var text strings.Builder
	lines := strings.SplitAfter(string(diff.Diff("", []byte(flat(t, root, old)), "", []byte(flat(t, root, now)))), "\n")
	for i, line := range lines {
		changed := func(line string) bool { return strings.HasPrefix(line, "+") || strings.HasPrefix(line, "-") }
		if i > 2 && (changed(line) || strings.HasPrefix(line, " ") && changed(lines[i+1])) { // 0 to 2: names
			text.WriteString(line)
		}
	}
	return text.String()
}

// flat writes a document with one line for each value that is not an object, and for each item of a list: path and JSON.
func flat(t testing.TB, path string, value any) string {
	t.Helper()
	var text strings.Builder
	var write func(path string, value any)
	write = func(path string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(value)) {
				write(path+"."+name, value[name])
			}
		case []any:
			for _, item := range value {
				fmt.Fprintf(&text, "%s[] %s\n", path, compact(t, item))
			}
		default:
			fmt.Fprintf(&text, "%s %s\n", path, compact(t, value))
		}
	}
	var document any
	require.NoError(t, json.Unmarshal([]byte(compact(t, value)), &document))
	write(path, document)
	return text.String()
}

func compact(t testing.TB, value any) string {
	t.Helper()
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	require.NoError(t, enc.Encode(value))
	return strings.TrimSpace(text.String())
}

// checkSpec validates an OCI spec against the runtime-spec's own schema.
func checkSpec(t testing.TB, spec *rspec.Spec) {
	t.Helper()
	data, err := json.Marshal(spec)
	require.NoError(t, err)
	bad, err := ocitest.CheckConfig(data)
	require.NoError(t, err)
	require.Empty(t, bad, "the OCI spec is not valid")
}
