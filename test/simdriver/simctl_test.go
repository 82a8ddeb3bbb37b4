//go:build root

package simdriver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/test/harness"
)

func TestConfigFile(t *testing.T) {
	s := New(t, Plain, "T4")
	config := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(config, []byte(`
# two GPUs
[driver]
version = 999.1
cuda = 13.0
[gpu]
profile = h200
uuid = GPU-ABCDEF01-2345-6789-abcd-ef0123456789   # any case
name = GPU "quoted" \ name
pci = 0001:a1:02.0
[gpu]
profile = A100-80GB
minor = 7
memory_mib = 1000
reserved_mib = 0
context_mib = 10
`), 0o644))
	s.Ctl("init", "--force", "--config", config)
	status := s.Status()
	require.Equal(t, "999.1", status.DriverVersion)
	require.Equal(t, 13000, status.CUDAVersion)
	require.Len(t, status.GPUs, 2)
	require.Equal(t, "GPU-abcdef01-2345-6789-abcd-ef0123456789", status.GPUs[0].UUID)
	require.Equal(t, `GPU "quoted" \ name`, status.GPUs[0].Name)
	require.Equal(t, "00000001:a1:02.0", status.GPUs[0].PCIBusID)
	require.EqualValues(t, 143771*mib, status.GPUs[0].MemoryTotalBytes)
	require.Equal(t, 7, status.GPUs[1].Minor)
	require.EqualValues(t, 1000*mib, status.GPUs[1].CapacityBytes())
	require.EqualValues(t, 10*mib, status.GPUs[1].ContextBytes)
	s.Ctl("set", "1", "context_mib=20", "kernel_us=5")
	s.Ctl("set", "driver", "version=1.2.3")
	require.EqualValues(t, 20*mib, s.Status().GPUs[1].ContextBytes)
	require.Equal(t, "1.2.3", s.Status().DriverVersion)
	require.Contains(t, s.Ctl("status"), "NVIDIA A100-SXM4-80GB")
}

func TestBadInputSaysWhatIsWrong(t *testing.T) {
	s := New(t, Plain, "T4")
	config := func(text string) string {
		path := filepath.Join(t.TempDir(), "config")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"init"}, 1, "exists; --force replaces it"},
		{[]string{"init", "--force", "--gpu", "GTX"}, 1, "unknown profile: GTX"},
		{[]string{"init", "--force", "--gpu", "T4:uuid=GPU-1"}, 1, "uuid: want GPU-"},
		{[]string{"init", "--force", "--gpu", "T4:memory_mib=-1"}, 1, "not a number in range: -1"},
		{[]string{"init", "--force", "--gpu", "T4:memory_mib=99999999999999"}, 1, "not a number in range"},
		{[]string{"init", "--force", "--gpu", "T4:memory_mib=400"}, 1, "reserved memory is all of its memory"},
		{[]string{"init", "--force", "--gpu", "T4:colour=red"}, 1, "unknown key of a GPU: colour"},
		{[]string{"init", "--force", "--gpu", "T4:nvlink=1"}, 1, "nvlink: want GPU:COUNT"},
		{[]string{"init", "--force", "--gpu", "T4:nvlink=1:1"}, 1, "nvlink to GPU 1, which is itself or not there"},
		{[]string{"init", "--force", "--gpu", "T4:nvlink=0:1"}, 1, "nvlink to GPU 0, which is itself or not there"},
		{[]string{"init", "--force", "--gpu", "T4:nvswitch=10,nvlink=1:9", "--gpu", "T4"}, 1, "more than 18 NVLinks"},
		{[]string{"init", "--force", "--gpu", "T4:minor"}, 1, "want key=value: minor"},
		{[]string{"init", "--force", "--gpu", "T4", "--gpu", "T4:minor=0"}, 1, "GPUs 0 and 1 have the same"},
		{[]string{"init", "--force", "--gpu", "T4:minor=255"}, 1, "minor 255 is not below 255"},
		{[]string{"init", "--force", "--config", "/nowhere"}, 1, "read /nowhere: No such file"},
		{[]string{"init", "--force", "--config", config("[gpu]\nprofile = T4\nwhat\n")}, 1, "line 3"},
		{[]string{"init", "--force", "--config", config("[gpu]\nminor = 1\n")}, 1, "profile must be a GPU's first key"},
		{[]string{"init", "--force", "--config", config("[gpus]\n")}, 1, "unknown section: [gpus]"},
		{[]string{"init", "--force", "--config", config("a = b\n")}, 1, "stands in no section"},
		{[]string{"init", "--force", "--config", config("[driver]\ncuda = twelve\n")}, 1, "want MAJOR.MINOR"},
		{[]string{"init", "--force", "--config", "x", "--gpu", "T4"}, 2, "not both"},
		{[]string{"--state", "/nowhere/state", "init"}, 1, "create /nowhere/state"},
		{[]string{"--state", "/nowhere/state", "status"}, 1, "No such file"},
		{[]string{"status", "-o", "yaml"}, 2, "-o table or -o json"},
		{[]string{"xid", "9", "79"}, 1, "no such GPU: 9"},
		{[]string{"xid", "0", "zero"}, 2, "not an XID: zero"},
		{[]string{"lose", "9"}, 1, "no such GPU: 9"},
		{[]string{"lose", "0", "gently"}, 2, "lose GPU removed: gently"},
		{[]string{"restore", "0"}, 1, "GPU 0 is there already"},
		{[]string{"fail", "cuMemAllocate", "1"}, 2, "no such function: cuMemAllocate"},
		{[]string{"fail", "cuMemAlloc_v2", "0"}, 2, "not a count: 0"},
		{[]string{"fail", "cuMemAlloc_v2", "1", "BAD_LUCK"}, 2, "not an error: BAD_LUCK"},
		{[]string{"set", "0", "minor"}, 1, "want key=value: minor"},
		{[]string{"set", "0", "slice_us=0"}, 1, "slice_us: not a number in range: 0"},
		{[]string{"set", "driver", "pids=any"}, 1, "pids: want own, host or mixed: any"},
		{[]string{"cdi"}, 2, "needs --lib-dir and --dev-dir"},
		{[]string{"cdi", "--lib-dir", "/nowhere", "--dev-dir", "/dev"}, 1, "/nowhere: No such file"},
		{[]string{"devnodes"}, 2, "needs --dev-dir"},
		{[]string{"--colour"}, 2, "unknown option"},
		{[]string{"dance"}, 2, "usage:"},
		{nil, 2, "usage:"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			before := s.Status()
			cmd := s.Command("sim/simctl", test.args...)
			text, _ := cmd.CombinedOutput()
			require.Equal(t, test.code, cmd.ProcessState.ExitCode(), "%s", text)
			require.Contains(t, string(text), test.says)
			require.Equal(t, before, s.Status(), "nothing is lost")
		})
	}
	left, err := filepath.Glob(s.State + ".*")
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestWorkloadUsage(t *testing.T) {
	s := New(t, Plain, "T4")
	for _, name := range []string{"alloc", "hold", "launch", "meminfo", "churn", "meminfo-direct"} {
		_, code := s.Run("workloads/"+name, "--nonsense")
		require.Equal(t, 2, code, name)
		if name != "meminfo-direct" {
			text, err := s.Command("workloads/"+name, "--help").Output()
			require.NoError(t, err)
			require.Contains(t, string(text), "Exit status")
		}
	}
	_, code := s.Run("workloads/alloc", "--chunk-mib=lots")
	require.Equal(t, 2, code)
	s.Env = []string{"LD_LIBRARY_PATH=/nowhere"}
	_, code = s.Run("workloads/alloc")
	require.Equal(t, 4, code, "no driver")
}

func TestCDISpec(t *testing.T) {
	s := New(t, Plain, "H200", "T4:minor=4")
	dir := t.TempDir()
	nodes := filepath.Join(dir, "dev")
	s.Ctl("devnodes", "--dev-dir", nodes)
	specs := filepath.Join(dir, "cdi")
	require.NoError(t, os.Mkdir(specs, 0o755))
	path := filepath.Join(specs, "nvidia.json")
	s.Ctl("cdi", "--lib-dir", filepath.Join(s.Dir, "sim"), "--dev-dir", nodes, "--out", path)

	spec, err := cdi.ReadSpec(path, 0)
	require.NoError(t, err)
	minimum, err := cdispec.MinimumRequiredVersion(spec.Spec)
	require.NoError(t, err)
	require.Equal(t, minimum, spec.Version, "as low as its features need")

	cache, err := cdi.NewCache(cdi.WithSpecDirs(specs), cdi.WithAutoRefresh(false))
	require.NoError(t, err)
	require.Empty(t, cache.GetErrors())
	require.Equal(t, []string{
		"nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=" + first, "nvidia.com/gpu=" + second,
		"nvidia.com/gpu=all",
	}, cache.ListDevices())
	for device, want := range map[string][]string{
		"0": {"/dev/nvidiactl", "/dev/nvidia0"}, second: {"/dev/nvidiactl", "/dev/nvidia4"},
		"all": {"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia4"},
	} {
		var container oci.Spec
		_, err = cache.InjectDevices(&container, "nvidia.com/gpu="+device)
		require.NoError(t, err)
		var got []string
		for _, node := range container.Linux.Devices {
			got = append(got, node.Path)
			require.Equal(t, "c", node.Type)
			require.EqualValues(t, 195, node.Major)
		}
		require.ElementsMatch(t, want, got)
		require.Len(t, container.Linux.Resources.Devices, len(want))
		require.Contains(t, container.Process.Env, "NVIDIA_VISIBLE_DEVICES=void")
		mounts := map[string]oci.Mount{}
		for _, mount := range container.Mounts {
			mounts[mount.Destination] = mount
		}
		require.Equal(t, s.State, mounts["/run/simgpu/state"].Source)
		require.Contains(t, mounts["/run/simgpu/state"].Options, "rw")
		require.Contains(t, mounts["/usr/lib/"+harness.Triplet+"/libcuda.so.1"].Options, "ro")
		require.FileExists(t, mounts["/usr/lib/"+harness.Triplet+"/libnvidia-ml.so.1"].Source)
	}
	text, err := s.Command("sim/simctl", "cdi", "--lib-dir", "/usr", "--dev-dir", "/dev").Output()
	require.NoError(t, err)
	require.Contains(t, string(text), `"hostPath":"/usr/libcuda.so.1"`)
}

// The seam that containers use: nothing is set in the environment, the library finds the state at /run/simgpu/state and
// the GPUs by their nodes in /dev. A mount namespace of its own stands in for the container.
func TestAsInAContainer(t *testing.T) {
	s := New(t, Plain, "T4", "T4", "T4")
	nodes := t.TempDir()
	s.Ctl("devnodes", "--dev-dir", nodes)
	script := `set -e
mount --make-rprivate /
mount -t tmpfs none /run
mkdir /run/simgpu
touch /run/simgpu/state
mount --bind "$1" /run/simgpu/state
mount -t tmpfs none /mnt
cp -a "$2/nvidia0" "$2/nvidia2" /mnt
mount --move /mnt /dev
exec "$3"`
	cmd := exec.Command("unshare", "-m", "sh", "-c", script, "sh", s.State, nodes, filepath.Join(s.Dir, "workloads/meminfo"))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LD_LIBRARY_PATH=" + filepath.Join(s.Dir, "sim")}
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	values := Parse(string(text))
	require.Equal(t, []string{first, third}, devices(values))
	require.Equal(t, "2", values["nvml.device_count"])
}
