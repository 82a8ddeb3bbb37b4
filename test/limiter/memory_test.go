//go:build root

package limiter_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/vgpufstest"
)

func oneGPU(tb testing.TB, limit uint64) *container {
	tb.Helper()
	return newContainer(tb, newMachine(tb, "H200"), gpu{gpuIDs[0], limit})
}

func TestLimitIsExact(t *testing.T) {
	t.Run("to the byte", func(t *testing.T) { limitIsExact(t, unpaged) })
	t.Run("in pages", func(t *testing.T) { limitIsExact(t, "") })
}

func limitIsExact(t *testing.T, keys string) {
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"one byte more than the limit", "init ctx 0 alloc 1073741825", []string{"init 0", "ctx 0", "alloc 2"}},
		{"all of it, then one byte", "init ctx 0 alloc 1073741824 alloc 1", []string{"init 0", "ctx 0", "alloc 0", "alloc 2"}},
		{"freed memory can be had again", "init ctx 0 alloc 1073741824 free 0 alloc 1073741824 alloc 1",
			[]string{"init 0", "ctx 0", "alloc 0", "free 0", "alloc 0", "alloc 2"}},
		{"a size that overflows", "init ctx 0 alloc 0xffffffffffffffff alloc 0x8000000000000000 alloc 1073741824",
			[]string{"init 0", "ctx 0", "alloc 2", "alloc 2", "alloc 0"}},
		{"managed memory counts", "init ctx 0 managed 1073741824 alloc 1 free 0 alloc 1",
			[]string{"init 0", "ctx 0", "managed 0", "alloc 2", "free 0", "alloc 0"}},
		{"pitched memory counts by its pitch", "init ctx 0 pitch 100 10 info alloc 1073736704 alloc 1",
			[]string{"init 0", "ctx 0", "pitch 512  0", "info 0 free 1073736704 total 1073741824", "alloc 0", "alloc 2"}},
		{"a pitched size that overflows", "init ctx 0 pitch 0xffffffffffffffff 3 pitch 0x1000000000 0x1000000000 info",
			[]string{"init 0", "ctx 0", "pitch 0  2", "pitch 0  2", "info 0 free 1073741824 total 1073741824"}},
		{"the first API's functions count too", "init ctx 0 alloc1 1048576 info1 total1 0 info free1 0 info",
			[]string{"init 0", "ctx 0", "alloc1 0", "info1 0 free 1072693248 total 1073741824", "total1 0 1073741824",
				"info 0 free 1072693248 total 1073741824", "free1 0", "info 0 free 1073741824 total 1073741824"}},
		{"an unknown pointer is the driver's business", "init ctx 0 alloc 4096 freeptr 99 freeptr 0 info",
			[]string{"init 0", "ctx 0", "alloc 0", "freeptr 1", "freeptr 0", "info 0 free 1073737728 total 1073741824"}},
		{"a double free gives back once", "init ctx 0 alloc 4096 alloc 4096 free 0 free 0 info",
			[]string{"init 0", "ctx 0", "alloc 0", "alloc 0", "free 0", "free 1", "info 0 free 1073737728 total 1073741824"}},
		{"nothing is asked for", "init ctx 0 alloc 0 info",
			[]string{"init 0", "ctx 0", "alloc 1", "info 0 free 1073741824 total 1073741824"}},
		{"without a context", "init alloc 4096 info", []string{"init 0", "alloc 201", "info 201 free 0 total 0"}},
		{"before cuInit", "alloc 4096 info total 0", []string{"alloc 3", "info 3 free 0 total 0", "total 3 0"}},
		{"a destroyed context gives back what was in it", "init newctx 0 alloc 1073741824 newctx newctx 0 info alloc 1073741824",
			[]string{"init 0", "newctx 0", "alloc 0", "destroy 0", "newctx 0", "info 0 free 1073741824 total 1073741824", "alloc 0"}},
		{"a released primary context too, a retained one not", "init ctx 0 ctx 0 alloc 4096 release 0 info release 0 ctx 0 info",
			[]string{"init 0", "ctx 0", "ctx 0", "alloc 0", "release 0", "info 0 free 1073737728 total 1073741824",
				"release 0", "ctx 0", "info 0 free 1073741824 total 1073741824"}},
		{"a reset one too", "init ctx 0 alloc 4096 reset 0 ctx 0 info",
			[]string{"init 0", "ctx 0", "alloc 0", "reset 0", "ctx 0", "info 0 free 1073741824 total 1073741824"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, newMachine(t, "H200:context_mib=520"+keys), gpu{gpuIDs[0], giB}).as(t, keys)
			lines, stderr := c.probe(t, test.script)
			// The pitch after a refused call does not matter.
			for i, line := range lines {
				if strings.HasPrefix(line, "pitch") && strings.HasSuffix(line, " 2") {
					lines[i] = "pitch 0  2"
				}
			}
			want := test.want
			if keys != unpaged {
				want = wholePage(want)
			}
			assert.Equal(t, want, lines)
			assert.Empty(t, stderr)
			peak, now := c.peak(t)
			requirePeak(t, peak, giB)
			assert.Zero(t, now)
			assert.Zero(t, c.used(t), "after the process")
		})
	}
}

// wholePage has what the lines show after a small allocation, to the byte and in pages.
func wholePage(lines []string) (paged []string) {
	for _, line := range lines {
		for _, left := range []string{"1073737728", "1072693248", "1073736704"} {
			line = strings.ReplaceAll(line, left, "1071644672")
		}
		paged = append(paged, line)
	}
	if strings.HasPrefix(lines[2], "pitch 512") { // the rest does not fit beside the page, and a byte fits into it
		copy(paged[4:], []string{"alloc 2", "alloc 0"})
	}
	return paged
}

// The driver refuses: the reservation must be undone.
func TestDriverRefusal(t *testing.T) {
	c := newContainer(t, newMachine(t, "T4"), gpu{gpuIDs[0], 100 * giB})
	lines, _ := c.probe(t, "init ctx 0 alloc 0x1000000000 info total 0 nvml 0")
	assert.Equal(t, "alloc 2", lines[2])
	var left, total uint64
	_, err := fmt.Sscanf(lines[3], "info 0 free %d total %d", &left, &total)
	require.NoError(t, err)
	bare, _ := c.bare().probe(t, "init ctx 0 info total 0")
	var bareTotal uint64
	var bareLeft uint64
	_, err = fmt.Sscanf(bare[2], "info 0 free %d total %d", &bareLeft, &bareTotal)
	require.NoError(t, err)
	assert.Equal(t, bareTotal, total, "total is the GPU where the limit is more")
	assert.Equal(t, bareLeft, left, "free is the GPU's where that is less")
	assert.Equal(t, bare[3], lines[4])
	assert.Zero(t, c.used(t))
}

func TestViews(t *testing.T) {
	c := oneGPU(t, giB)
	lines, _ := c.probe(t, "init ctx 0 alloc 4096 info infonull total 0 nvml 0")
	assert.Equal(t, []string{
		"init 0", "ctx 0", "alloc 0", "info 0 free 1073737728 total 1073741824", "infonull 1", "total 0 1073741824",
		"nvml 0 total 1073741824 free 1073737728 used 4096", "nvml2 0 total 1073741824 free 1073737728 used 4096",
	}, lines)
	bare, _ := c.bare().probe(t, "init ctx 0 infonull")
	assert.Equal(t, "infonull 1", bare[2], "the driver decides what NULL does")
}

// Something that only watches takes no slot, starts no thread and needs no CUDA.
func TestNVMLAlone(t *testing.T) {
	c := oneGPU(t, giB)
	lines, stderr := c.probe(t, "nvml 0 threads")
	assert.Equal(t, []string{
		"nvml 0 total 1073741824 free 1073741824 used 0", "nvml2 0 total 1073741824 free 1073741824 used 0", "threads 1",
	}, lines)
	assert.Empty(t, stderr)
	u, err := limiter.ReadUsage(c.usage())
	require.NoError(t, err)
	assert.Zero(t, u.Processes)
}

// GPUs are known by UUID, whatever order the limits file or the driver has them in.
func TestOrderOfGPUs(t *testing.T) {
	state := newMachine(t, "H200", "H200", "T4")
	limits := map[string]uint64{gpuIDs[0]: 1 * miB, gpuIDs[1]: 2 * miB, gpuIDs[2]: 3 * miB}
	for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}} {
		for _, visible := range []string{"0,1,2", "2,1,0", "1,2,0", gpuIDs[2] + "," + gpuIDs[0]} {
			t.Run(fmt.Sprintf("%v visible %s", order, visible), func(t *testing.T) {
				var gpus []gpu
				for _, i := range order {
					gpus = append(gpus, gpu{gpuIDs[i], limits[gpuIDs[i]]})
				}
				c := newContainer(t, state, gpus...).with("CUDA_VISIBLE_DEVICES=" + visible)
				for i := range strings.Split(visible, ",") {
					lines, stderr := c.probe(t, fmt.Sprintf("init uuid %d ctx %d info total %d", i, i, i))
					require.Empty(t, stderr)
					digits := strings.Fields(lines[1])[2]
					uuid := fmt.Sprintf("GPU-%s-%s-%s-%s-%s", digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
					assert.Equal(t, fmt.Sprintf("info 0 free %d total %d", limits[uuid], limits[uuid]), lines[3])
					assert.Equal(t, fmt.Sprintf("total 0 %d", limits[uuid]), lines[4])
				}
			})
		}
	}
}

// Two containers on one GPU, each sees its own.
func TestTwoContainers(t *testing.T) {
	state := newMachine(t, "H200")
	a, b := newContainer(t, state, gpu{gpuIDs[0], 2 * giB}), newContainer(t, state, gpu{gpuIDs[0], 3 * giB})
	b.group = "8"
	cmd := a.command(bin+"/probe", strings.Fields("init ctx 0 alloc 2147483648 sleep 60000")...)
	require.NoError(t, cmd.Start())
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	eventually(t, waitLong, "a has its memory", func() bool { return a.used(t) == 2*giB })
	lines, _ := b.probe(t, "init ctx 0 info nvml 0 alloc 3221225472 alloc 1")
	assert.Equal(t, []string{
		"init 0", "ctx 0", "info 0 free 3221225472 total 3221225472",
		"nvml 0 total 3221225472 free 3221225472 used 0", "nvml2 0 total 3221225472 free 3221225472 used 0",
		"alloc 0", "alloc 2",
	}, lines)
}

// For any error in the files: no memory, no view of the GPU, one line with the reason and the file.
func TestBadFiles(t *testing.T) {
	bend := func(file string, size int64, at int64, bytes ...byte) func(*testing.T, *container) {
		return func(t *testing.T, c *container) {
			path := filepath.Join(limiter.FilesDir(c.dir), file)
			require.NoError(t, os.Chmod(path, 0o644))
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			defer f.Close()
			if len(bytes) > 0 {
				_, err = f.WriteAt(bytes, at)
				require.NoError(t, err)
			}
			if size >= 0 {
				require.NoError(t, f.Truncate(size))
			}
		}
	}
	u32 := func(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
	for _, test := range []struct {
		name string
		do   func(*testing.T, *container)
		why  string
	}{
		{"no limits", func(t *testing.T, c *container) { require.NoError(t, os.Remove(c.limits())) }, "No such file"},
		{"a directory", func(t *testing.T, c *container) {
			require.NoError(t, os.Remove(c.limits()))
			require.NoError(t, os.Mkdir(c.limits(), 0o755))
		}, ""},
		{"empty limits", bend("limits", 0, 0), "not 4096 bytes"},
		{"short limits", bend("limits", 2048, 0), "not 4096 bytes"},
		{"long limits", bend("limits", 4097, 0), "not 4096 bytes"},
		{"wrong magic", bend("limits", -1, 0, 'X'), "magic"},
		{"another layout", bend("limits", -1, 8, u32(2)...), "layout"},
		{"another header size", bend("limits", -1, 12, u32(64)...), "size"},
		{"another record size", bend("limits", -1, 16, u32(256)...), "size"},
		{"no records", bend("limits", -1, 20, u32(0)...), "record count"},
		{"17 records", bend("limits", -1, 20, u32(17)...), "record count"},
		{"flags changed", bend("limits", -1, 32, u32(1)...), "checksum"},
		{"header checksum", bend("limits", -1, 36, u32(0)...), "checksum"},
		{"record checksum", bend("limits", -1, 132, u32(0)...), "record"},
		{"a larger limit written by hand", bend("limits", -1, 128+24, 0xff, 0xff, 0xff, 0xff, 0xff), "record"},
		{"a rewrite that never ends", bend("limits", -1, 128, u32(1)...), "record"},
		{"all zeros", func(t *testing.T, c *container) {
			require.NoError(t, os.Chmod(c.limits(), 0o644))
			require.NoError(t, os.WriteFile(c.limits(), make([]byte, 4096), 0o644))
		}, "magic"},
		{"no usage", func(t *testing.T, c *container) { require.NoError(t, os.Remove(c.usage())) }, "No such file"},
		{"short usage", bend("usage", 4096, 0), "length"},
		{"usage magic", bend("usage", -1, 0, 'X'), "magic"},
		{"usage sizes", bend("usage", -1, 16, u32(64)...), "sizes"},
		{"usage of another GPU", bend("usage", -1, 64, 0xaa), "other GPUs"},
		{"usage of more GPUs", bend("usage", -1, 36, u32(2)...), "gpus"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := oneGPU(t, giB)
			test.do(t, c)
			lines, stderr := c.probe(t, "init ctx 0 alloc 4096 info total 0")
			assert.Equal(t, []string{"init 3", "ctx 3", "alloc 3", "info 3 free 0 total 0", "total 3 0"}, lines)
			assert.Contains(t, stderr, test.why)
			assert.Contains(t, stderr, c.dir)
			assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)

			if strings.Contains(test.name, "usage") && !strings.Contains(test.name, "no usage") {
				return
			}
			lines, _ = c.probe(t, "nvml 0")
			assert.Contains(t, lines[0], "nvml 1 ")
			assert.Contains(t, lines[1], "nvml2 1 ")
		})
	}
}

// Where the fixed paths exist, as in every container, the environment can't name
// others: a tenant would give itself a larger limit.
func TestEnvironmentCannotRedirect(t *testing.T) {
	state := newMachine(t, "H200")
	mine, larger := newContainer(t, state, gpu{gpuIDs[0], miB}), newContainer(t, state, gpu{gpuIDs[0], giB})
	const enter = `shift; export LD_PRELOAD="$1"; shift; exec chroot /mnt "$@"`
	script := vgpufstest.NewRoot + `mount --bind "$1" /mnt/.gpuslice; mount --bind "$1/usage" /mnt/.gpuslice/usage; mount -o remount,bind,ro /mnt/.gpuslice; ` + enter
	args := append([]string{"-m", "sh", "-ec", script, "sh", limiter.FilesDir(mine.dir), mine.library, filepath.Join(bin, "probe")},
		strings.Fields("nvml 0 init ctx 0 total 0 alloc 1048577 alloc 1048576 info nvml 0")...)
	c := larger.bare().with("CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_MEMORY_LIMIT_0=1g")
	lines, stderr := c.run(t, "unshare", args...)
	assert.Empty(t, stderr)
	assert.Equal(t, []string{
		"nvml 0 total 1048576 free 1048576 used 0", "nvml2 0 total 1048576 free 1048576 used 0",
		"init 0", "ctx 0", "total 0 1048576", "alloc 2", "alloc 0", "info 0 free 0 total 1048576",
		"nvml 0 total 1048576 free 0 used 1048576", "nvml2 0 total 1048576 free 0 used 1048576",
	}, lines)

	// Nor does taking the limits file away help, where the directory is left.
	args[3] = vgpufstest.NewRoot + enter
	lines, _ = larger.bare().with("CUDA_DEVICE_MEMORY_LIMIT=1g").run(t, "unshare", args...)
	assert.Contains(t, lines, "init 3")
	assert.Contains(t, lines, "alloc 3")
}

// A GPU without a record is denied, and the one with a record is not.
func TestUnlistedGPU(t *testing.T) {
	c := newContainer(t, newMachine(t, "H200", "T4"), gpu{gpuIDs[1], giB})
	lines, stderr := c.probe(t, "init total 0 ctx 0 newctx 0 alloc 1 total 1 ctx 1 alloc 1073741824 alloc 1 nvml 0 nvml 1")
	assert.Equal(t, []string{
		"init 0", "total 3 ", "ctx 3", "newctx 3", "alloc 201", "total 0 1073741824", "ctx 0", "alloc 0", "alloc 2",
		"nvml 4 ", "nvml2 4 ",
		"nvml 0 total 1073741824 free 0 used 1073741824", "nvml2 0 total 1073741824 free 0 used 1073741824",
	}, trimDenied(lines))
	assert.Contains(t, stderr, gpuIDs[0])
	assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
}

// trimDenied cuts what a refused query left in the caller's variables.
func trimDenied(lines []string) []string {
	for i, l := range lines {
		for _, p := range []string{"total 3 ", "nvml 4 ", "nvml2 4 "} {
			if strings.HasPrefix(l, p) {
				lines[i] = p
			}
		}
	}
	return lines
}

// Limits that change while a process runs are followed, and free nothing.
func TestLimitsChange(t *testing.T) {
	c := oneGPU(t, giB)
	p := talk(t, c.command(bin+"/probe", strings.Fields("init ctx 0 alloc 536870912 line alloc 1 info free 0 alloc 1048576 alloc 1 info")...))
	p.hearAll(t, "init 0", "ctx 0", "alloc 0")
	require.NoError(t, limiter.UpdateLimits(c.dir, limiter.Limits{
		Devices: []limiter.DeviceLimit{{UUID: gpuIDs[0], MemoryLimitBytes: miB}},
	}))
	p.tell(t, "")
	p.hearEnd(t, "alloc 2", "info 0 free 0 total 1048576", "free 0", "alloc 0", "alloc 2", "info 0 free 0 total 1048576")
}

// A bare process, without any mount of ours, may take its limits from variables.
func TestEnvironmentFallback(t *testing.T) {
	for _, test := range []struct {
		name string
		env  []string
		want string
	}{
		{"for all GPUs", []string{"CUDA_DEVICE_MEMORY_LIMIT=1m"}, "total 0 1048576"},
		{"for this GPU", []string{"CUDA_DEVICE_MEMORY_LIMIT=1m", "CUDA_DEVICE_MEMORY_LIMIT_0=2g"}, "total 0 2147483648"},
		{"in bytes", []string{"CUDA_DEVICE_MEMORY_LIMIT_0=1000"}, "total 0 1000"},
		{"in KiB", []string{"CUDA_DEVICE_MEMORY_LIMIT_0=3K"}, "total 0 3072"},
		{"none", nil, "total 3"},
		{"zero", []string{"CUDA_DEVICE_MEMORY_LIMIT_0=0"}, "total 3"},
		{"nonsense", []string{"CUDA_DEVICE_MEMORY_LIMIT_0=12x"}, "total 3"},
		{"huge", []string{"CUDA_DEVICE_MEMORY_LIMIT_0=99999999999999g"}, "total 3"},
		{"another GPU", []string{"CUDA_DEVICE_MEMORY_LIMIT_1=1m"}, "total 3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := oneGPU(t, giB).with(append(test.env, "VGPU_LIMITS_PATH=", "VGPU_USAGE_PATH=")...)
			lines, _ := c.probe(t, "init ctx 0 total 0 alloc 0x1000000000")
			assert.True(t, strings.HasPrefix(lines[2], test.want), lines[2])
			assert.NotEqual(t, "alloc 0", lines[3])
		})
	}
}
