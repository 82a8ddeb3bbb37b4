//go:build root

package nvdriver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	specs "github.com/gpuslice/gpuslice/oci/cdispec"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/ocitest"
)

// driverRoot makes a directory with the simulated driver, laid out as NVIDIA's: libraries
// with the driver's version in their names, a program, and device nodes.
func driverRoot(t *testing.T, gpus ...string) (root string, lib nvml.Interface, simctl func(args ...string)) {
	t.Helper()
	sim, err := filepath.Abs("../../../build/sim")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(sim, "simctl"), "the simulated driver isn't built: run make build")
	root = t.TempDir()
	t.Setenv("SIMGPU_STATE", filepath.Join(root, "state"))
	simctl = func(args ...string) {
		t.Helper()
		out, err := exec.Command(filepath.Join(sim, "simctl"), args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	init := []string{"init"}
	for _, gpu := range gpus {
		init = append(init, "--gpu", gpu)
	}
	simctl(init...)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "dev"), 0o755))
	simctl("devnodes", "--dev-dir", filepath.Join(root, "dev"))

	library := filepath.Join(sim, "libnvidia-ml.so.1")
	lib = nvml.New(nvml.WithLibraryPath(library))
	install(t, root, sim, driverVersion(t, lib))
	return root, lib, simctl
}

func driverVersion(t *testing.T, lib nvml.Interface) string {
	t.Helper()
	require.Equal(t, nvml.SUCCESS, lib.Init())
	defer lib.Shutdown()
	version, ret := lib.SystemGetDriverVersion()
	require.Equal(t, nvml.SUCCESS, ret)
	return version
}

// install puts the driver's files where a distribution puts them.
func install(t *testing.T, root, sim, version string) {
	t.Helper()
	libs := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	bin := filepath.Join(root, "usr/bin")
	require.NoError(t, os.MkdirAll(libs, 0o755))
	require.NoError(t, os.MkdirAll(bin, 0o755))
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so"} {
		data, err := os.ReadFile(filepath.Join(sim, name+".1"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(libs, name+"."+version), data, 0o755))
		require.NoError(t, os.Symlink(name+"."+version, filepath.Join(libs, name+".1")))
		require.NoError(t, os.Symlink(name+".1", filepath.Join(libs, name)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte("#!/bin/sh\n"), 0o755))
}

func TestGenerate(t *testing.T) {
	for _, test := range []struct {
		name  string
		gpus  []string
		mig   bool
		hook  string
		hooks []string
	}{
		{name: "two-gpus-our-hooks", gpus: []string{"H200", "T4"}, hook: "/usr/bin/gpuslice-runtime", hooks: []string{"chmod", "create-symlinks", "update-ldcache"}},
		{name: "two-gpus-nvidias-hooks", gpus: []string{"H200", "T4"}, hook: "/usr/bin/nvidia-cdi-hook"},
		{name: "gpu-in-mig-mode-is-left-out", gpus: []string{"H200", "T4"}, mig: true, hook: "/usr/bin/gpuslice-runtime", hooks: []string{"create-symlinks"}},
		{name: "only-gpus-in-mig-mode", gpus: []string{"H200"}, mig: true, hook: "/usr/bin/gpuslice-runtime", hooks: []string{"create-symlinks"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root, lib, simctl := driverRoot(t, test.gpus...)
			if test.mig {
				simctl("mig", "0", "enable")
			}
			spec, err := Generate(Options{Root: root, NVML: lib, HookPath: test.hook, Hooks: test.hooks})
			require.NoError(t, err)
			_, err = specs.Write(t.TempDir(), "nvidia.yaml", spec)
			require.NoError(t, err, "CDI accepts it")
			compare(t, test.name, root, spec)
		})
	}
}

// compare compares a spec with its golden file. The driver's directory is another in each
// test, and cdiVersion is set by the caller.
func compare(t *testing.T, name, root string, spec *cdispec.Spec) {
	t.Helper()
	spec.Version = ""
	data, err := yaml.Marshal(spec)
	require.NoError(t, err)
	lines, err := ocitest.CDILines(data)
	require.NoError(t, err)
	golden.Check(t, filepath.Join("testdata", name+".txt"), strings.ReplaceAll(lines, root, "/DRIVER-ROOT"))
}

func TestGenerateErrors(t *testing.T) {
	root, lib, _ := driverRoot(t, "T4")
	for _, test := range []struct {
		name string
		o    Options
		want string
	}{
		{"a hook program that is not absolute", Options{Root: root, NVML: lib, HookPath: "nvidia-cdi-hook"}, "not an absolute path"},
		{"no NVML", Options{Root: root, NVML: nvml.New(nvml.WithLibraryPath("/none/libnvidia-ml.so.1")), HookPath: "/x"}, "NVML"},
		{"no driver files", Options{Root: t.TempDir(), NVML: lib, HookPath: "/x"}, "libcuda.so"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Generate(test.o)
			require.ErrorContains(t, err, test.want)
		})
	}
}
