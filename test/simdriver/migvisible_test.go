//go:build root

package simdriver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func capName(minor int) string { return fmt.Sprintf("nvidia-cap%d", minor) }

// names are what CUDA has in this process.
func names(s *Sim) []string {
	values, _ := s.Run("workloads/meminfo")
	var list []string
	for i := range values.Int("device_count") {
		list = append(list, values[fmt.Sprintf("device.%d.name", i)])
	}
	return list
}

// A GPU with MIG on is never seen as a whole, a process has one MIG device at most, and then nothing else.
func TestCUDAVisibleDevicesWithMIG(t *testing.T) {
	s := New(t, Plain, "H200:mig=1g.18gb,mig=3g.71gb", "H100:mig=1g.10gb", "T4", "H100:mig=on")
	const small, large, other, whole = "NVIDIA H200 MIG 1g.18gb", "NVIDIA H200 MIG 3g.71gb",
		"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "Tesla T4"
	uuids := map[string]string{}
	for _, gpu := range s.Status().GPUs {
		for _, device := range gpu.MIG {
			uuids[gpu.Name+" MIG "+device.Profile] = device.UUID
		}
	}
	for _, test := range []struct {
		description, value string
		want               []string
	}{
		{"by UUID", uuids[small], []string{small}},
		{"by UUID, of another GPU", uuids[other], []string{other}},
		{"by the beginning of a UUID", uuids[other][:12], []string{other}},
		{"by one that two have", uuids[small][:12], nil},
		{"the first of two", uuids[small] + "," + uuids[large], []string{small}},
		{"beside a GPU", second + "," + third, []string{other}},
		{"behind a GPU", third + "," + uuids[large], []string{large}},
		{"a GPU with MIG off", third, []string{whole}},
		{"a GPU with MIG on: its first", first, []string{large}},
		{"by number", "0", []string{large}},
		{"a GPU without an instance is not counted", "3", nil},
		{"none such", "MIG-ffffffff", nil},
		{"twice the same", uuids[small] + "," + uuids[small], nil},
	} {
		t.Run(test.description, func(t *testing.T) {
			s.Env = []string{"CUDA_VISIBLE_DEVICES=" + test.value}
			require.Equal(t, test.want, names(s))
		})
	}
	s.Env = nil
	require.Equal(t, []string{large}, names(s), "the first of the first GPU")
}

// The nodes decide: the GPU's and both of the instance, each with its number, and readable.
func TestMIGDeviceNodesDecideWhatIsVisible(t *testing.T) {
	s := New(t, Plain, "A100-40GB:mig=1g.5gb,mig=2g.10gb", "T4")
	dir := t.TempDir()
	s.Ctl("devnodes", "--dev-dir", dir)
	s.Ctl("devnodes", "--dev-dir", dir) // again: nothing to do
	s.Env = []string{"SIMGPU_DEV_DIR=" + dir}
	devices := s.Status().GPUs[0].MIG
	require.Equal(t, "2g.10gb", devices[0].Profile)
	caps := func(device MIG) (paths []string) {
		for _, minor := range device.CapMinors {
			paths = append(paths, filepath.Join(dir, "nvidia-caps", capName(minor)))
		}
		return paths
	}
	for _, path := range append(caps(devices[0]), caps(devices[1])...) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o444), info.Mode().Perm())
	}
	const one, two = "NVIDIA A100-SXM4-40GB MIG 2g.10gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
	require.Equal(t, []string{one}, names(s))
	require.NoError(t, os.Remove(caps(devices[0])[1]))
	require.Equal(t, []string{two}, names(s), "without its compute instance's node the first is not there")
	require.NoError(t, os.WriteFile(caps(devices[0])[1], nil, 0o444))
	require.Equal(t, []string{two}, names(s), "a plain file is no device")
	require.NoError(t, os.Rename(caps(devices[1])[0], dir+"/aside"))
	require.Equal(t, []string{"Tesla T4"}, names(s), "without its GPU instance's neither")
	require.NoError(t, os.Rename(dir+"/aside", caps(devices[1])[0]))
	require.NoError(t, os.Rename(dir+"/nvidia0", dir+"/aside"))
	require.Equal(t, []string{"Tesla T4"}, names(s), "nor without the GPU's")
	require.NoError(t, os.Rename(dir+"/aside", dir+"/nvidia0"))
	require.NoError(t, os.Remove(dir+"/nvidia1"))
	require.Equal(t, []string{two}, names(s))

	require.NoError(t, os.Remove(caps(devices[0])[1]))
	s.Ctl("mig", "0", "destroy", "all")
	s.Ctl("devnodes", "--dev-dir", dir)
	left, err := os.ReadDir(dir + "/nvidia-caps")
	require.NoError(t, err)
	require.Empty(t, left, "what is gone has no nodes")
}

func TestMIGInCDISpec(t *testing.T) {
	s := New(t, Plain, "T4", "A100-40GB:minor=3,mig=1g.5gb,mig=3g.20gb")
	dir := t.TempDir()
	nodes, specs := filepath.Join(dir, "dev"), filepath.Join(dir, "cdi")
	s.Ctl("devnodes", "--dev-dir", nodes)
	require.NoError(t, os.Mkdir(specs, 0o755))
	s.Ctl("cdi", "--lib-dir", filepath.Join(s.Dir, "sim"), "--dev-dir", nodes, "--out", specs+"/nvidia.json")
	devices := s.Status().GPUs[1].MIG
	cache, err := cdi.NewCache(cdi.WithSpecDirs(specs), cdi.WithAutoRefresh(false))
	require.NoError(t, err)
	require.Empty(t, cache.GetErrors())
	require.ElementsMatch(t, []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=" + first, "nvidia.com/gpu=" + second,
		"nvidia.com/gpu=1:0", "nvidia.com/gpu=1:1", "nvidia.com/gpu=" + devices[0].UUID, "nvidia.com/gpu=" + devices[1].UUID,
		"nvidia.com/gpu=all"}, cache.ListDevices())

	caps := func(device MIG) (paths []string) {
		for _, minor := range device.CapMinors {
			paths = append(paths, filepath.Join("/dev/nvidia-caps", capName(minor)))
		}
		return paths
	}
	for name, want := range map[string][]string{
		"1": {"/dev/nvidia3"}, "1:0": append(caps(devices[0]), "/dev/nvidia3"),
		devices[1].UUID: append(caps(devices[1]), "/dev/nvidia3"),
		"all":           append(append(caps(devices[0]), caps(devices[1])...), "/dev/nvidia0", "/dev/nvidia3"),
	} {
		var container oci.Spec
		_, err = cache.InjectDevices(&container, "nvidia.com/gpu="+name)
		require.NoError(t, err)
		var got []string
		for _, node := range container.Linux.Devices {
			got = append(got, node.Path)
		}
		require.ElementsMatch(t, append(want, "/dev/nvidiactl"), got, name)
		for _, rule := range container.Linux.Resources.Devices {
			if *rule.Major == 120 {
				require.Equal(t, "r", rule.Access, "of a capability")
			}
		}
	}
}
