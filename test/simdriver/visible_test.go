//go:build root

package simdriver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// publicCopy copies what a program needs to a directory that any user may enter, and makes a state file in it.
func publicCopy(t *testing.T, s *Sim) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "simdriver")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	for _, name := range []string{"sim/libcuda.so.1", "sim/libnvidia-ml.so.1", "workloads/hold", "workloads/meminfo"} {
		content, err := os.ReadFile(filepath.Join(s.Dir, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), content, 0o755))
	}
	s.Ctl("--state", dir+"/state", "init", "--gpu", "T4", "--gpu", "T4")
	return dir
}

func devices(values Values) []string {
	var uuids []string
	for i := range values.Int("device_count") {
		uuids = append(uuids, values["device."+strconv.FormatInt(i, 10)+".uuid"])
	}
	return uuids
}

const (
	first  = "GPU-00000001-5151-4000-8000-000000000001"
	second = "GPU-00000002-5151-4000-8000-000000000002"
	third  = "GPU-00000003-5151-4000-8000-000000000003"
)

func TestCUDAVisibleDevices(t *testing.T) {
	s := New(t, Plain, "T4", "T4", "T4")
	for _, test := range []struct {
		value string
		want  []string
	}{
		{"0,1,2", []string{first, second, third}},
		{"2,0", []string{third, first}},
		{"1", []string{second}},
		{second, []string{second}},
		{"GPU-00000003", []string{third}},
		{third + "," + first, []string{third, first}},
		{"0,7,1", []string{first}}, // what comes before the first that names nothing
		{"0,-1,1", []string{first}},
		{"0,1,0", nil},       // twice the same: none
		{"GPU-0000000", nil}, // more than one has this prefix
		{"GPU-ffffffff", nil},
		{"", nil},
		{"nonsense", nil},
	} {
		t.Run(test.value, func(t *testing.T) {
			s.Env = []string{"CUDA_VISIBLE_DEVICES=" + test.value}
			values, code := s.Run("workloads/meminfo")
			if test.want == nil {
				require.Equal(t, 3, code)
				require.Equal(t, "CUDA_ERROR_NO_DEVICE", values["error"])
				return
			}
			require.Zero(t, code)
			require.Equal(t, test.want, devices(values))
			require.Equal(t, "3", values["nvml.device_count"], "NVML does not care")
		})
	}
}

// CUDA puts the fastest GPU first, NVML goes by PCI bus: the same number is not the same GPU.
func TestOrderOfGPUs(t *testing.T) {
	s := New(t, Plain, "T4", "H200")
	values, _ := s.Run("workloads/meminfo")
	require.Equal(t, []string{second, first}, devices(values))
	require.Equal(t, first, values["nvml.0.uuid"])
	s.Env = []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID"}
	values, _ = s.Run("workloads/meminfo")
	require.Equal(t, []string{first, second}, devices(values))
}

func TestDeviceNodesDecideWhatIsVisible(t *testing.T) {
	s := New(t, Plain, "T4", "T4", "T4:minor=5")
	dir := t.TempDir()
	s.Ctl("devnodes", "--dev-dir", dir)
	s.Ctl("devnodes", "--dev-dir", dir) // again: nothing to do
	s.Env = []string{"SIMGPU_DEV_DIR=" + dir}
	see := func() ([]string, string) {
		values, _ := s.Run("workloads/meminfo")
		return devices(values), values["nvml.device_count"]
	}
	uuids, count := see()
	require.Equal(t, []string{first, second, third}, uuids)
	require.Equal(t, "3", count)

	require.NoError(t, os.Remove(dir+"/nvidia1"))
	uuids, count = see()
	require.Equal(t, []string{first, third}, uuids)
	require.Equal(t, "2", count)

	require.NoError(t, os.WriteFile(dir+"/nvidia1", nil, 0o666)) // a plain file is no device
	require.NoError(t, os.Remove(dir+"/nvidia0"))
	require.NoError(t, os.Remove(dir+"/nvidia5"))
	require.NoError(t, syscall.Mknod(dir+"/nvidia0", syscall.S_IFCHR|0o666, 1<<8|3))   // nor is /dev/null
	require.NoError(t, syscall.Mknod(dir+"/nvidia5", syscall.S_IFCHR|0o666, 195<<8|4)) // nor another GPU
	values, code := s.Run("workloads/meminfo")
	require.Equal(t, 3, code)
	require.Equal(t, "CUDA_ERROR_NO_DEVICE", values["error"])
}

// What may not be opened is not visible. (In a container the devices cgroup returns EPERM.)
func TestForbiddenNodeIsNotVisible(t *testing.T) {
	s := New(t, Plain, "T4")
	dir := publicCopy(t, s)
	s.Ctl("--state", dir+"/state", "devnodes", "--dev-dir", dir+"/dev")
	require.NoError(t, os.Chmod(dir+"/dev/nvidia0", 0o600))
	cmd := exec.Command(dir + "/meminfo")
	cmd.Env = []string{"SIMGPU_STATE=" + dir + "/state", "SIMGPU_DEV_DIR=" + dir + "/dev", "LD_LIBRARY_PATH=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	text, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, []string{second}, devices(Parse(string(text))))
}

// In a container nothing is set: the state is at its default path and the nodes in /dev decide.
func TestNoStateIsNoDriver(t *testing.T) {
	s := New(t, Plain, "T4")
	s.State = t.TempDir() + "/missing"
	values, code := s.Run("workloads/meminfo")
	require.Equal(t, 3, code)
	require.Equal(t, "CUDA_ERROR_NO_DEVICE", values["error"])
	text, err := s.Command("sim/check", "lookup").CombinedOutput()
	require.NoError(t, err, "functions are found without a driver: %s", text)
	require.NoError(t, os.WriteFile(s.State, []byte(strings.Repeat("x", 5000)), 0o666))
	values, _ = s.Run("workloads/meminfo")
	require.Equal(t, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", values["error"])
}
