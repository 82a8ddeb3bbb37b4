//go:build clients

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/simdriver"
)

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
	variables     string // if the limits in variables make a difference: they don't know the size of a context
	room          uint64 // memory beside a context; 0: 8 GiB are the limit
	status        int    // exit status with the limit; 0 without
	context       bool   // it makes one
	modules       uint64 // what its modules take, if it is more than a page
}

// ffmpeg has the place of more options and of more filters.
const ffmpeg = "$ROOT/usr/bin/ffmpeg -nostdin -loglevel error %s -f lavfi -i testsrc2=size=640x360:rate=25 -frames:v 50 -vf format=yuv420p%s -f framemd5 "

// onGPU makes the frames without the GPU and through it, and compares their checksums.
var onGPU = fmt.Sprintf(ffmpeg, "", "") + "host && " +
	fmt.Sprintf(ffmpeg, "-init_hw_device cuda=gpu -filter_hw_device gpu", ",hwupload,hwdownload,format=yuv420p") + "gpu && cmp host gpu && cat gpu"

var clients = []client{
	{name: "gpustat", line: "/usr/bin/python3 $ROOT/usr/bin/gpustat --no-color -p",
		bare: `NVIDIA H200 .* 606 / 143771 MB \|\n$`, limited: `NVIDIA H200 .* 0 / +8192 MB \|\n$`},
	{name: "boinc", line: "$ROOT/usr/bin/boinc --detect_gpus >/dev/null && cat coproc_info.xml",
		bare: `<totalGlobalMem>150119383040\.`, limited: `<totalGlobalMem>8589934592\.`},
	// It shows that there is a GPU, and nothing that a limit changes.
	{name: "hwloc", line: "HWLOC_PLUGINS_PATH=$ROOT/usr/lib/x86_64-linux-gnu/hwloc HWLOC_COMPONENTS=-gl,-opencl $ROOT/usr/bin/lstopo-no-graphics --whole-io --of console",
		bare: `GPU\(NVML\) "nvml0"`, limited: `GPU\(NVML\) "nvml0"`},
	{name: "nvtop", line: `script -qec "stty cols 150 rows 40; timeout --foreground --preserve-status -s INT 5 $ROOT/usr/bin/nvtop" screen >/dev/null && strings screen`,
		bare: `(?s)NVIDIA H200.*/140\.401Gi`, limited: `(?s)NVIDIA H200.*/8\.000Gi`},
	{name: "ffmpeg", context: true, line: onGPU, bare: `(?m)^0, +49, +49`, limited: `(?m)^0, +49, +49`},
	{name: "ffmpeg-refused", context: true, line: onGPU, bare: `(?m)^0, +49, +49`, limited: `cuMemAlloc.* failed -> CUDA_ERROR_OUT_OF_MEMORY`,
		room: 100 * 1024, status: 1},
	{name: "openmp", context: true, line: "gcc -fopenmp -foffload=nvptx-none -no-pie -B$ROOT/usr/lib/gcc/x86_64-linux-gnu/12 -o openmp $TESTDATA/openmp.c && OMP_TARGET_OFFLOAD=MANDATORY ./openmp",
		bare: `devices 1\non host 0\nGiB 139\n`, limited: `devices 1\non host 0\nGiB 7\n`, variables: `devices 1\non host 0\nGiB 8\n`, modules: 150 * miB}, // one calls malloc
	{name: "numba", context: true, line: "/usr/bin/python3 $TESTDATA/numba_copy.py",
		bare:      `same True\nfree 149569929216 total 150119383040\nGiB 139 \[2\] .*CUDA_ERROR_OUT_OF_MEMORY`,
		limited:   `same True\nfree 8040480768 total 8589934592\nGiB 7 \[2\] .*CUDA_ERROR_OUT_OF_MEMORY`,
		variables: `same True\nfree 8585740288 total 8589934592\nGiB 7 \[2\] .*CUDA_ERROR_OUT_OF_MEMORY`},
	{name: "gpu-feature-discovery", line: "gpu-feature-discovery --oneshot --no-timestamp --output-file labels && cat labels",
		bare: `nvidia.com/gpu.memory=143771\n`, limited: `nvidia.com/gpu.memory=8192\n`},
	// It shows which GPUs and which files there are: nothing that a limit changes.
	{name: "nvidia-ctk", line: "nvidia-ctk cdi generate --mode=nvml --driver-root $DRIVER",
		bare: `name: GPU-00000001-5151-4000-8000-000000000001`, limited: `name: GPU-00000001-5151-4000-8000-000000000001`},
}

// nonfree are programs that are or need what is not free: with NONFREE set.
var nonfree = []client{
	{name: "nvidia-smi", line: "$ROOT/usr/lib/nvidia/current/nvidia-smi", bare: `0MiB / 14377\.\.\.`, limited: `0MiB / +8192MiB`},
	{name: "pycuda", context: true, line: "/usr/bin/python3 $TESTDATA/pycuda_copy.py",
		bare: `same True\nmemory \(142643, 143165\)`, limited: `same True\nmemory \(7670, 8192\)`, variables: `same True\nmemory \(8190, 8192\)`},
	// The kernel calls nothing of libdevice, which is in a package of its own of 84 MB.
	{name: "numba-kernel", context: true, line: `mkdir -p nvvm/lib64 nvvm/libdevice && cp $ROOT/usr/lib/x86_64-linux-gnu/libnvvm.so.4.0.0 nvvm/lib64 &&
		ln -s libnvvm.so.4.0.0 nvvm/lib64/libnvvm.so && CUDA_HOME=$PWD NUMBA_FORCE_CUDA_CC=7.5 /usr/bin/python3 $TESTDATA/numba_kernel.py`,
		bare: `launched`, limited: `launched`},
	{name: "hashcat", line: `cp $ROOT/usr/bin/hashcat . && ln -s $ROOT/usr/share/hashcat/* . && ln -s $ROOT/usr/lib/x86_64-linux-gnu/libnvrtc.so.11.2 libnvrtc.so &&
		HOME=$PWD LD_LIBRARY_PATH=$PWD:$LD_LIBRARY_PATH ./hashcat -I`,
		bare: `Memory.Total\.+: 143165 MB`, limited: `Memory.Total\.+: 8192 MB`},
}

func TestClients(t *testing.T) {
	if os.Getenv("NONFREE") != "" {
		clients = append(clients, nonfree...)
	}
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			t.Run("bare", func(t *testing.T) {
				t.Parallel()
				text, status := newContainer(t, simdriver.New(t, simdriver.Plain, "H200"), "1").run(t, c.line)
				require.Zero(t, status)
				require.Regexp(t, c.bare, text)
			})
			for _, m := range modes {
				t.Run(m.name, func(t *testing.T) {
					t.Parallel()
					c.runLimited(t, m)
				})
			}
		})
	}
}

func (c client) runLimited(t *testing.T, m mode) {
	s := simdriver.New(t, simdriver.Plain, "H200")
	in, limit, want := newContainer(t, s, "1"), uint64(8*giB), c.limited
	if c.room > 0 {
		limit = contextBytes + c.room
	}
	if m.variables && c.room > 0 {
		limit = c.room
	}
	if m.variables && c.variables != "" {
		want = c.variables
	}
	in.limit(t, m, limiter.DeviceLimit{MemoryLimitBytes: limit})
	if m.neighbour {
		neighbour(t, s)
	}
	text, status := in.run(t, c.line)
	require.Equal(t, c.status, status)
	require.Regexp(t, want, text)
	most := limit
	if m.variables {
		most += contextBytes + max(c.modules, 2*miB)
	}
	peak, _ := in.used(t)
	require.LessOrEqual(t, peak, most)
	if c.context {
		require.GreaterOrEqual(t, peak, uint64(contextBytes))
	}
}
