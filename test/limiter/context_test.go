//go:build root

package limiter_test

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// Each context is charged the size in the limits file, until it ends.
func TestContextsAreCharged(t *testing.T) {
	const context = 520 * miB
	free := func(bytes uint64) string { return fmt.Sprintf("info 0 free %d total %d", bytes, uint64(giB)) }
	const refusal = "the memory limit leaves no room for a context, which takes 520 MiB: 520 of 1024 MiB are in use"
	for _, test := range []struct {
		name, script string
		want         []string
		complaint    string
	}{
		{"the primary one", "init ctx 0 info nvml 0 alloc 528482305 alloc 528482304 alloc 1", []string{"init 0", "ctx 0",
			free(giB - context), "nvml 0 total 1073741824 free 528482304 used 545259520",
			"nvml2 0 total 1073741824 free 528482304 used 545259520", "alloc 2", "alloc 0", "alloc 2"}, ""},
		{"retained twice, once", "init ctx 0 ctx 0 info release 0 info", []string{"init 0", "ctx 0", "ctx 0", free(giB - context),
			"release 0", free(giB - context)}, ""},
		{"not a second one", "init ctx 0 newctx 0 newctx 0 info", []string{"init 0", "ctx 0", "newctx 2", "newctx 2",
			free(giB - context)}, refusal},
		{"nor the primary one as a second", "init newctx 0 ctx 0 info", []string{"init 0", "newctx 0", "ctx 2", free(giB - context)},
			refusal},
		{"given back when it is destroyed", "init newctx 0 alloc 4096 newctx newctx 0 info newctx ctx 0 info", []string{"init 0",
			"newctx 0", "alloc 0", "destroy 0", "newctx 0", free(giB - context), "destroy 0", "ctx 0", free(giB - context)}, ""},
		{"given back at the last release", "init ctx 0 ctx 0 release 0 newctx 0 release 0 newctx 0 info", []string{"init 0", "ctx 0",
			"ctx 0", "release 0", "newctx 2", "release 0", "newctx 0", free(giB - context)}, refusal},
		{"and at a reset, and charged again", "init ctx 0 reset 0 newctx 0 info newctx ctx 0 info newctx 0", []string{"init 0",
			"ctx 0", "reset 0", "newctx 0", free(giB - context), "destroy 0", "ctx 0", free(giB - context), "newctx 2"}, refusal},
		{"a release too many", "init ctx 0 release 0 release 0 ctx 0 info", []string{"init 0", "ctx 0", "release 0", "release 201",
			"ctx 0", free(giB - context)}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newContainerKnowing(t, newMachine(t, "H200:context_mib=520"), context, gpu{gpuIDs[0], giB})
			lines, stderr := c.probe(t, test.script)
			assert.Equal(t, test.want, lines)
			if test.complaint == "" {
				assert.Empty(t, stderr)
			} else {
				assert.Equal(t, "gpuslice: "+test.complaint+"\n", stderr)
			}
			peak, now := c.peakTotal(t)
			assert.LessOrEqual(t, peak, uint64(giB))
			assert.Zero(t, now)
			assert.Zero(t, c.used(t), "after the process")
		})
	}
}

func TestLimitBelowOneContext(t *testing.T) {
	c := newContainerKnowing(t, newMachine(t, "H200:context_mib=520"), 520*miB, gpu{gpuIDs[0], 100 * miB})
	lines, stderr := c.probe(t, "init total 0 ctx 0 newctx 0 nvml 0")
	assert.Equal(t, []string{"init 0", "total 0 104857600", "ctx 2", "newctx 2",
		"nvml 0 total 104857600 free 104857600 used 0", "nvml2 0 total 104857600 free 104857600 used 0"}, lines)
	assert.Equal(t, "gpuslice: the memory limit leaves no room for a context, which takes 520 MiB: 0 of 100 MiB are in use\n", stderr)
}

// The driver refuses a context: what was charged for it must be given back.
func TestDriverRefusesContext(t *testing.T) {
	c := newContainerKnowing(t, newMachine(t, "T4:context_mib=100"), 100*miB, gpu{gpuIDs[0], giB})
	for _, name := range []string{"cuDevicePrimaryCtxRetain", "cuCtxCreate_v2"} {
		out, err := exec.Command(filepath.Join(built, "sim", "simctl"), "--state", c.state, "fail", name, "1").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	lines, _ := c.probe(t, "init ctx 0 newctx 0 nvml 0 ctx 0 newctx 0 info")
	assert.NotEqual(t, "ctx 0", lines[1])
	assert.NotEqual(t, "newctx 0", lines[2])
	assert.Equal(t, []string{"nvml 0 total 1073741824 free 1073741824 used 0", "nvml2 0 total 1073741824 free 1073741824 used 0",
		"ctx 0", "newctx 0", fmt.Sprintf("info 0 free %d total %d", giB-200*miB, giB)}, lines[3:])
}

// The usage file has the contexts while their process lives and after it is killed.
func TestKilledContext(t *testing.T) {
	c := newContainerKnowing(t, newMachine(t, "H200:context_mib=520"), 520*miB, gpu{gpuIDs[0], giB})
	for range 5 {
		cmd := hold(t, c, "init ctx 0 sleep 60000")
		eventually(t, waitLong, "the context is charged", func() bool {
			u, err := limiter.ReadUsage(c.usage())
			require.NoError(t, err)
			return u.Devices[0].UsedBytes == 520*miB && u.Devices[0].ContextBytes == 520*miB
		})
		lines, _ := c.probe(t, "init ctx 0")
		require.Equal(t, "ctx 2", lines[1], "while it lives")
		require.NoError(t, cmd.Process.Kill())
		cmd.Wait()
		lines, _ = c.probe(t, "init ctx 0")
		require.Equal(t, "ctx 0", lines[1], "at once after its death")
	}
}

// There is room for one context. Threads of two processes retain, release and reset
// the primary one: never are there two, and nothing stays charged.
func TestPrimaryContextRaces(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
	}{{"release", nil}, {"reset", []string{"reset"}}} {
		t.Run(test.name, func(t *testing.T) {
			const context = 100 * miB
			c := newContainerKnowing(t, newMachine(t, "H200:context_mib=100"), context, gpu{gpuIDs[0], context})
			racePrimary(t, c, filepath.Join(bin, "primary"), 2, append([]string{"2", "4"}, test.args...)...)
			peak, now := c.peakTotal(t)
			assert.Equal(t, uint64(context), peak)
			assert.Zero(t, now)
			assert.Zero(t, c.used(t))
		})
	}
}

// racePrimary runs so many processes of testdata/primary.c and looks, while all of
// them live, whether anything is charged after each has let go.
func racePrimary(t *testing.T, c *container, program string, processes int, args ...string) {
	t.Helper()
	var outs []*bufio.Reader
	var ends []io.Closer
	var complaints []*strings.Builder
	var commands []*exec.Cmd
	for range processes {
		cmd := c.command(program, args...)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		complaint := new(strings.Builder)
		cmd.Stderr = complaint
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { cmd.Process.Kill() })
		outs, ends, complaints, commands = append(outs, bufio.NewReader(out)), append(ends, in), append(complaints, complaint), append(commands, cmd)
	}
	had := 0
	for _, out := range outs {
		line, err := out.ReadString('\n')
		assert.NoError(t, err)
		var one, refused, wrong int
		fmt.Sscanf(line, "had %d refused %d wrong %d", &one, &refused, &wrong)
		assert.Zero(t, wrong, line)
		had += one
	}
	assert.Greater(t, had, 100, "it was hardly ever had: the test tests nothing")
	u, err := limiter.ReadUsage(c.usage())
	require.NoError(t, err)
	assert.Equal(t, processes, u.Processes)
	assert.Zero(t, u.Devices[0].UsedBytes, "all have let go")
	assert.Zero(t, u.Devices[0].ContextBytes, "all have let go")
	for i, cmd := range commands {
		ends[i].Close()
		assert.NoError(t, cmd.Wait(), complaints[i])
		assert.NotContains(t, complaints[i].String(), "anitizer")
	}
}

// Every function that makes a context, on a driver that has them all.
func TestEveryWayToAContext(t *testing.T) {
	program := filepath.Join(t.TempDir(), "contexts")
	require.NoError(t, compile(program, "testdata/contexts.c"))
	c := newContainerKnowing(t, newMachine(t, "H200"), 100*miB, gpu{gpuIDs[0], 250 * miB})
	c.sim = fakeDriver(t)
	lines, _ := c.run(t, program)
	var want []string
	for _, name := range []string{"cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuGLCtxCreate",
		"cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"} {
		want = append(want, name+" 0 100, 0 100, 2 0, destroyed -200")
	}
	want = append(want,
		"green 0 100", "green 0 0", "primary 0 0", "destroy green 0 0", "destroy green 0 0", "release 0 -100",
		"green 0 100", "destroy green 0 -100",
		"green 0 100", "destroy what it was made into 0 -100",
		"full 2 0", "none 3 0")
	assert.Equal(t, want, lines)
	assert.Zero(t, c.used(t))
}

// Managed memory may move to any GPU of the container: it is charged on all.
func TestManagedMemoryIsChargedOnEveryGPU(t *testing.T) {
	state := newMachine(t, "H200", "H200", "H200")
	c := newContainer(t, state, gpu{gpuIDs[0], giB}, gpu{gpuIDs[2], 100 * miB})
	lines, stderr := c.with("CUDA_VISIBLE_DEVICES=0,2").probe(t, "init ctx 0 managed 104857601 managed 62914560 nvml 0 nvml 2 managed 62914560 "+
		"ctx 1 alloc 41943041 info free 0 info newctx 0 managed 104857600 newctx ctx 1 info ctx 0 info")
	assert.Empty(t, stderr)
	assert.Equal(t, []string{"init 0", "ctx 0", "managed 2", "managed 0",
		"nvml 0 total 1073741824 free 1010827264 used 62914560", "nvml2 0 total 1073741824 free 1010827264 used 62914560",
		"nvml 0 total 104857600 free 41943040 used 62914560", "nvml2 0 total 104857600 free 41943040 used 62914560",
		"managed 2", "ctx 0", "alloc 2", "info 0 free 41943040 total 104857600", "free 0", "info 0 free 104857600 total 104857600",
		"newctx 0", "managed 0", "destroy 0", "ctx 0", "info 0 free 104857600 total 104857600", "ctx 0",
		"info 0 free 1073741824 total 1073741824"}, lines)
	assert.Zero(t, c.used(t))
}

// A program that closes every descriptor right after cuInit frees its slot's byte
// before the helper thread has run: two may claim one slot, and one must go on.
func TestClosedDescriptorsBeforeTheSlotIsOwned(t *testing.T) {
	program := filepath.Join(t.TempDir(), "slots")
	sources := filepath.Join(root, "limiter/src")
	require.NoError(t, compile(program, "testdata/slots.c", "-std=gnu11", "-pthread", "-iquote", sources,
		filepath.Join(sources, "owner.c"), filepath.Join(sources, "thread.c"), filepath.Join(sources, "slot.c"), filepath.Join(sources, "filelock.c"),
		filepath.Join(sources, "exported.c"), filepath.Join(sources, "ipcrecord.c"), filepath.Join(sources, "filepages.c"), filepath.Join(sources, "suspend.c"), filepath.Join(sources, "witness.c"), filepath.Join(sources, "log.c")))
	c := oneGPU(t, giB)
	lines, stderr := c.run(t, program, c.usage())
	assert.Equal(t, []string{
		"claimed 0 0", "owned 1 1", "second first: 1 0, words are their own", "pids are there",
		"byte of 0 locked 0", "byte of 1 locked 1",
		"claimed 2 2", "owned 1 0", "denied where no other is free",
	}, lines)
	assert.Contains(t, stderr, "could not own a process slot")
}
