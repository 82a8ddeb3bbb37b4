package oci

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/ocitest"
)

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

// testSpec is the spec of a pod's container that containerd has made, or of one that is privileged or in a user namespace.
func testSpec(t testing.TB, name string) *rspec.Spec {
	data, err := os.ReadFile("testdata/containerd.json")
	require.NoError(t, err)
	spec := &rspec.Spec{}
	require.NoError(t, json.Unmarshal(data, spec))
	if name != "containerd" {
		variants[name](spec)
	}
	return spec
}

// variants are what containerd makes otherwise.
var variants = map[string]func(*rspec.Spec){
	"privileged": func(s *rspec.Spec) {
		mode, root := os.FileMode(0o666), uint32(0)
		node := func(path string, major, minor int64) rspec.LinuxDevice {
			return rspec.LinuxDevice{Path: path, Type: "c", Major: major, Minor: minor, FileMode: &mode, UID: &root, GID: &root}
		}
		s.Linux.Devices = []rspec.LinuxDevice{
			node("/dev/fuse", 10, 229), node("/dev/nvidia0", 195, 0), node("/dev/nvidia1", 195, 1), node("/dev/nvidiactl", 195, 255), node("/dev/nvidia-uvm", 510, 0),
		}
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, rspec.LinuxDeviceCgroup{Allow: true, Access: "rwm"})
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil
		for _, held := range []*[]string{&s.Process.Capabilities.Bounding, &s.Process.Capabilities.Effective, &s.Process.Capabilities.Permitted} {
			*held = append(*held, "CAP_SYS_ADMIN")
		}
	},
	"userns": func(s *rspec.Spec) {
		mapping := []rspec.LinuxIDMapping{{HostID: 65536, Size: 65536}}
		s.Linux.UIDMappings, s.Linux.GIDMappings = mapping, mapping
		s.Linux.Namespaces = append(s.Linux.Namespaces, rspec.LinuxNamespace{Type: rspec.UserNamespace})
		s.Process.User = rspec.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{1000}}
	},
}

// factsOf are a spec's, with a claim and a runtime handler.
func factsOf(spec *rspec.Spec, handler string) Container {
	c := ContainerOf("c0ffee", spec)
	c.Dir = "/run/gpuslice/containers/c0ffee"
	c.TurnID = limiter.TurnIDOf(c.ID, "")
	c.RuntimeHandler = handler
	return c
}

// one is a share of the first GPU.
func one(mib int64, cores int) []grant.Share {
	return []grant.Share{{UUID: gpu0, MemoryMiB: mib, CorePercent: cores}}
}

// checkGolden compares a case's text with its golden file, or writes the file. Of the body, the file of
// a case has only what differs from the golden file of the case `like`, if any.
func checkGolden(t testing.TB, name, head, body, like string) {
	t.Helper()
	file := func(name string) string { return filepath.Join("testdata/golden", name+".diff") }
	if like != name {
		other, err := os.ReadFile(file(like))
		require.NoError(t, err, "go test ./oci -update writes it")
		_, rest, _ := strings.Cut(string(other), "\n\n")
		head, body = head+"\nlike "+like+", but", ocitest.DifferingLines(rest, body)
	}
	golden.Check(t, file(name), head+"\n\n"+body)
}

// changes returns what differs between two values, in JSON.
func changes(t testing.TB, root string, before, after any) string {
	t.Helper()
	text := func(value any) []byte {
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false)
		require.NoError(t, enc.Encode(value))
		return text.Bytes()
	}
	lines, err := ocitest.Changes(root, text(before), text(after))
	require.NoError(t, err)
	return lines
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
