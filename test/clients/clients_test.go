//go:build clients

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/simdriver"
)

// root is where the programs are unpacked.
var root = filepath.Join(simdriver.Root(), "build/clients/root")

func TestMain(m *testing.M) {
	for _, command := range [][]string{
		{filepath.Join(simdriver.Root(), "test/clients/fetch.sh"), filepath.Dir(root)},
		{"make", "-s", "-C", filepath.Join(simdriver.Root(), "limiter/src"), "OUT=" + filepath.Join(simdriver.Root(), "build")},
	} {
		if text, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n%s", command[0], err, text)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// client is a program, and what it has to print without a limit and with 8 GiB of an H200.
type client struct {
	name          string
	line          string // for sh, in an empty directory
	bare, limited string // regular expressions
}

var clients = []client{
	{"gpustat", "/usr/bin/python3 $ROOT/usr/bin/gpustat --no-color", `NVIDIA H200 .* 606 / 143771 MB`, `NVIDIA H200 .* 0 / +8192 MB`},
	{"boinc", "$ROOT/usr/bin/boinc --detect_gpus >/dev/null && cat coproc_info.xml",
		`<totalGlobalMem>150119383040\.`, `<totalGlobalMem>8589934592\.`},
	// It shows that there is a GPU, and nothing that a limit changes.
	{"hwloc", "HWLOC_PLUGINS_PATH=$ROOT/usr/lib/x86_64-linux-gnu/hwloc HWLOC_COMPONENTS=-gl,-opencl $ROOT/usr/bin/lstopo-no-graphics --whole-io --of console",
		`GPU\(NVML\) "nvml0"`, `GPU\(NVML\) "nvml0"`},
	{"nvtop", `script -qec "stty cols 150 rows 40; timeout --preserve-status -s INT 5 $ROOT/usr/bin/nvtop" screen >/dev/null && strings screen`,
		`(?s)NVIDIA H200.*/140\.401Gi`, `(?s)NVIDIA H200.*/8\.000Gi`},
}

func (c client) run(t *testing.T, s *simdriver.Sim, env ...string) string {
	t.Helper()
	libraries := t.TempDir() // boinc asks for libcuda.so, which the driver's packages have
	for name, target := range map[string]string{"libcuda.so": "libcuda.so.1", "libcuda.so.1": "libcuda.so.1",
		"libnvidia-ml.so": "libnvidia-ml.so.1", "libnvidia-ml.so.1": "libnvidia-ml.so.1"} {
		require.NoError(t, os.Symlink(filepath.Join(s.Dir, "sim", target), filepath.Join(libraries, name)))
	}
	cmd := exec.Command("sh", "-c", c.line)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+s.State, "ROOT="+root, "TERM=xterm",
		"PYTHONPATH="+filepath.Join(root, "usr/lib/python3/dist-packages"),
		"LD_LIBRARY_PATH="+libraries+":"+filepath.Join(root, "usr/lib/x86_64-linux-gnu")+":"+filepath.Join(root, "usr/lib"))
	cmd.Env = append(cmd.Env, env...)
	// A shell that is killed leaves its program, which has the output open.
	cmd.WaitDelay = time.Second
	timer := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() }) // no program here takes so long: it hangs
	defer timer.Stop()
	text, err := cmd.CombinedOutput()
	t.Logf("%s", text)
	require.NoError(t, err)
	return string(text)
}

func TestClients(t *testing.T) {
	limited := []string{
		"LD_PRELOAD=" + filepath.Join(simdriver.Root(), "build/lib/libvgpu.so"), "CUDA_DEVICE_MEMORY_LIMIT=8g",
	}
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			t.Run("bare", func(t *testing.T) {
				require.Regexp(t, c.bare, c.run(t, simdriver.New(t, simdriver.Plain, "H200")))
			})
			t.Run("preload", func(t *testing.T) {
				require.Regexp(t, c.limited, c.run(t, simdriver.New(t, simdriver.Plain, "H200"), limited...))
			})
		})
	}
}
