//go:build root

package limiter_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

const (
	stepLimit   = giB
	stepContext = 8 * miB
	stepPercent = 30
	survivors   = 3
	stepBurst   = 50 * time.Millisecond * stepPercent / 100
	stepKernel  = 200 * time.Microsecond
	// Nothing that a survivor calls may take longer, whatever the machine is busy with.
	// A bounded wait is 1.1 s; a hang is for ever.
	stepHang = time.Minute
)

// A process is killed at each step of its work on the shared file, beside others that continue. `make test`
// takes an even sample of the steps that another process can see; `make test-steps` sets VGPU_EVERY_STEP to
// "stores", all of those, or to "instructions", every one that the library executes.
func TestKilledAtEveryStep(t *testing.T) {
	most := map[string]int{"join": 24, "launch": 24, "wait": 12, "graph": 16}
	const dir = "testdata/steps/"
	require.NoError(t, compile(filepath.Join(bin, "steps"), dir+"main.c", dir+"sections.c", dir+"trace.c", dir+"survive.c", "-pthread", "-I"+filepath.Join(root, "limiter/src")))
	for _, section := range []string{"join", "alloc", "refused", "full", "reap", "first-launch", "launch", "wait", "pool", "vmm", "export", "held", "array", "context", "graph", "managed", "suspend", "suspend-other", "suspend-ipc", "ipc-open", "ipc-free"} {
		t.Run(section, func(t *testing.T) {
			t.Parallel()
			if by := os.Getenv("VGPU_EVERY_STEP"); by != "" {
				killAtSteps(t, section, by, 0)
			} else {
				killAtSteps(t, section, "stores", max(most[section], 20))
			}
		})
	}
}

// talker is a program that reads lines and answers with lines.
type talker struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	longest time.Duration // that a survivor's call took
}

func talk(t testing.TB, cmd *exec.Cmd) *talker {
	t.Helper()
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &talker{cmd: cmd, in: in, out: bufio.NewReader(out)}
}

func (p *talker) tell(t testing.TB, line string) {
	t.Helper()
	_, err := io.WriteString(p.in, line+"\n")
	require.NoError(t, err)
}

// hear reads a line; one that doesn't come is a hang.
func (p *talker) hear(t testing.TB) string {
	t.Helper()
	timer := time.AfterFunc(stepHang, func() { p.cmd.Process.Kill() })
	line, err := p.out.ReadString('\n')
	require.True(t, timer.Stop() && err == nil, "%s hangs or has ended: %v", p.cmd.Args, err)
	return strings.TrimSpace(line)
}

// hearAll reads as many lines as there are.
func (p *talker) hearAll(t *testing.T, want ...string) {
	t.Helper()
	for _, line := range want {
		require.Equal(t, line, p.hear(t))
	}
}

// hearEnd reads the lines that are left, which are these and no others, and waits for the program to end well.
func (p *talker) hearEnd(t *testing.T, want ...string) {
	t.Helper()
	timer := time.AfterFunc(stepHang, func() { p.cmd.Process.Kill() })
	defer timer.Stop()
	rest, err := io.ReadAll(p.out)
	require.NoError(t, err)
	require.Equal(t, strings.Join(want, "\n")+"\n", string(rest))
	require.NoError(t, p.cmd.Wait())
}

// answer is a survivor's answer to a line.
func (p *talker) answer(t *testing.T, what string) (result int) {
	t.Helper()
	var us int
	_, err := fmt.Sscanf(p.hear(t), what+" %d %d", &result, &us)
	require.NoError(t, err)
	p.longest = max(p.longest, time.Duration(us)*time.Microsecond)
	return result
}

// newStepContainer has a GPU without pages: each step of the account is checked to the byte.
func newStepContainer(t *testing.T) *container {
	t.Helper()
	c := newContainerKnowing(t, newMachine(t, fmt.Sprintf("H200:context_mib=%d", stepContext/miB)+unpaged), stepContext, gpu{gpuIDs[0], stepLimit})
	require.NoError(t, os.Remove(c.limits()))
	require.NoError(t, limiter.WriteLimits(c.limits(), limiter.Limits{Devices: []limiter.DeviceLimit{{
		UUID: gpuIDs[0], MemoryLimitBytes: stepLimit, ContextBytes: stepContext,
		CorePercent: stepPercent, Policy: limiter.PolicyForce,
	}}}))
	takeTurns(t, c)
	return c
}

func killAtSteps(t *testing.T, section, by string, most int) {
	c := newStepContainer(t)
	if section == "suspend-ipc" {
		c.simctl(t, "set", "driver", "branch=615") // which checkpoints a process that shares memory
	}
	var living []*talker
	for range survivors {
		p := talk(t, c.command(filepath.Join(bin, "steps"), "survive"))
		require.Zero(t, p.answer(t, "ready"))
		living = append(living, p)
	}
	living[0].tell(t, "l") // the GPU's clock begins with the first work
	require.Zero(t, living[0].answer(t, "l"))
	begin := c.clock(t)
	goOn(t, living)
	killer := talk(t, c.command(filepath.Join(bin, "steps"), "kill", c.usage(), strconv.Itoa(survivors), by, strconv.Itoa(most), section))
	var steps, kills int
	_, err := fmt.Sscanf(killer.hear(t), "steps %d", &steps)
	require.NoError(t, err)
	require.Positive(t, steps, "the section is none: nothing would be tested")
	for line := killer.hear(t); line != "done"; line = killer.hear(t) {
		require.Contains(t, line, "killed at ")
		kills++
		if _, pid, ok := strings.Cut(line, " beside "); ok {
			if section == "ipc-free" {
				checkHolder(t, c, living, section+" "+line)
			} else {
				checkCompanion(t, c, living, pid, section+" "+line)
			}
			killer.tell(t, "")
			require.Equal(t, "ended", killer.hear(t))
			goOn(t, living)
		}
		checkAfterKill(t, c, living, section+" "+line)
		goOn(t, living)
		killer.tell(t, "")
	}
	checkRate(t, begin, c.clock(t), kills+1, section)
	var longest time.Duration
	for _, p := range living {
		longest = max(longest, p.longest)
	}
	t.Logf("%d kills among %d %s; the longest call of a survivor took %s", kills, steps, by, longest)
}

func goOn(t *testing.T, living []*talker) {
	t.Helper()
	for _, p := range living {
		p.tell(t, "g")
		require.Zero(t, p.answer(t, "g"))
	}
}

// checkAfterKill: the first process that needs the dead process' bytes reaps it, all that it had can be
// allocated again, not a byte more, and every process has what it should have.
func checkAfterKill(t *testing.T, c *container, living []*talker, at string) {
	t.Helper()
	for _, p := range living {
		p.tell(t, "p")
	}
	for _, p := range living {
		require.Zero(t, p.answer(t, "p"), at)
	}
	const room = stepLimit - survivors*stepContext
	one := living[0]
	one.tell(t, fmt.Sprintf("f %d", room))
	require.Zero(t, one.answer(t, "f"), "what the dead had is free at once; %s", at)
	one.tell(t, fmt.Sprintf("f %d", room+1))
	require.Equal(t, 2, one.answer(t, "f"), "and not a byte more; %s", at)
	peak, now := c.peakTotal(t)
	require.LessOrEqual(t, peak, uint64(stepLimit), at)
	require.Equal(t, uint64(survivors*stepContext), now, at)
	require.Equal(t, now, c.used(t), at)
	require.Zero(t, c.spilled(t), at)
	require.LessOrEqual(t, c.credit(t), stepBurst, "more is earned than may be; %s", at)
	for _, p := range living {
		p.tell(t, "l")
		require.Zero(t, p.answer(t, "l"), at)
	}
}

// companionBytes is what the process has that a section checkpoints.
const companionBytes = stepContext + 600*miB

// checkCompanion: whatever the dead process has done to a companion, its memory never counts less than the driver has
// of it, another process can bring it back, and then it counts exactly.
func checkCompanion(t *testing.T, c *container, living []*talker, pid, at string) {
	t.Helper()
	for _, p := range living {
		p.tell(t, "p")
	}
	for _, p := range living {
		require.Zero(t, p.answer(t, "p"), at)
	}
	_, now := c.peakTotal(t)
	require.GreaterOrEqual(t, c.used(t), now, at)
	lines, stderr := c.probe(t, strings.ReplaceAll("init checkpoint PID restore PID unlock PID", "PID", pid))
	require.Empty(t, stderr, at)
	require.Contains(t, [][]string{
		{"init 0", "checkpoint 401", "restore 401", "unlock 401"}, // it was running
		{"init 0", "checkpoint 0", "restore 0", "unlock 0"},       // locked
		{"init 0", "checkpoint 401", "restore 0", "unlock 0"},     // checkpointed
	}, lines, at)
	peak, now := c.peakTotal(t)
	require.LessOrEqual(t, peak, uint64(stepLimit), at)
	require.Equal(t, uint64(survivors*stepContext+companionBytes), now, at)
	require.Equal(t, now, c.used(t), at)
	one := living[0]
	one.tell(t, fmt.Sprintf("f %d", stepLimit-now))
	require.Zero(t, one.answer(t, "f"), at)
	one.tell(t, fmt.Sprintf("f %d", stepLimit-now+1))
	require.Equal(t, 2, one.answer(t, "f"), at)
}

// checkHolder: what a companion has open of the dead process' memory counts, and nothing else of it.
func checkHolder(t *testing.T, c *container, living []*talker, at string) {
	t.Helper()
	for _, p := range living {
		p.tell(t, "p")
	}
	for _, p := range living {
		require.Zero(t, p.answer(t, "p"), at)
	}
	peak, now := c.peakTotal(t)
	require.LessOrEqual(t, peak, uint64(stepLimit), at)
	one := living[0]
	one.tell(t, fmt.Sprintf("f %d", stepLimit-now))
	require.Zero(t, one.answer(t, "f"), at)
	one.tell(t, fmt.Sprintf("f %d", stepLimit-now+1))
	require.Equal(t, 2, one.answer(t, "f"), at)
	require.Equal(t, now, c.used(t), at)
}

// spilled is the sum over all slots of GPU 0 of what may be in the host's memory, slots without an owner
// included: the next owner of such a slot would have it.
func (c *container) spilled(t *testing.T) (sum uint64) {
	t.Helper()
	file, err := os.ReadFile(c.usage())
	require.NoError(t, err)
	for slot := 4096; slot < len(file); slot += 1280 {
		sum += binary.LittleEndian.Uint64(file[slot+128+56:])
	}
	return sum
}

// credit is what the container may use of GPU 0 at once.
func (c *container) credit(t *testing.T) time.Duration {
	t.Helper()
	f, err := os.Open(c.turnFile(t, 0))
	require.NoError(t, err)
	defer f.Close()
	var b [8]byte
	_, err = f.ReadAt(b[:], offTurnCap)
	require.NoError(t, err)
	return time.Duration(binary.LittleEndian.Uint64(b[:]))
}

// gpuTime is GPU 0's clock, and how much of it was worked.
type gpuTime struct{ Clock, Busy uint64 }

func (c *container) clock(t *testing.T) gpuTime {
	t.Helper()
	s := c.truth(t)
	require.NotEmpty(t, s.GPUs)
	return gpuTime{s.GPUs[0].ClockNs, s.GPUs[0].BusyNs}
}

// checkRate: over all the kills the GPU gave the container its share. A killed process can have had what it
// under way, and no more.
func checkRate(t *testing.T, from, to gpuTime, dead int, section string) {
	t.Helper()
	const launches = 6
	kernel := stepKernel
	if section == "wait" {
		kernel = 20 * time.Millisecond
	}
	busy, length := time.Duration(to.Busy-from.Busy), time.Duration(to.Clock-from.Clock)
	fair := length*stepPercent/100 + stepBurst + time.Duration(dead+survivors)*launches*kernel
	assert.LessOrEqual(t, busy, fair, "of %s", length)
	t.Logf("%s of %s worked (%.1f %%)", busy, length, 100*float64(busy)/float64(length))
}
