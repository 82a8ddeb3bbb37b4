//go:build root

package limiter_test

import (
	"bufio"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

const waitLong = 20 * time.Second

// 64 processes of one container make contexts and allocate at random and are killed at random. The simulated
// driver keeps the exact peak of what the container had, and its contexts have exactly the size in the limits
// file.
func TestKillsNeverExceedTheLimit(t *testing.T) {
	t.Run("to the byte", func(t *testing.T) { killsNeverExceed(t, unpaged, 30*time.Second) })
	t.Run("in pages", func(t *testing.T) { killsNeverExceed(t, "", 5*time.Second) })
}

// unpaged are keys of a GPU that has no pages, for tests of the limiter's account: what it charges is to the byte what it
// is asked for.
const unpaged = ",page_kib=0"

func killsNeverExceed(t *testing.T, keys string, length time.Duration) {
	const processes, limit = 64, 8*giB + 12345
	const context = 24 * miB
	c := newContainerKnowing(t, newMachine(t, "H200:context_mib=24"+keys), context, gpu{gpuIDs[0], limit}).as(t, keys)
	deadline := time.Now().Add(length)
	var wg sync.WaitGroup
	var mu sync.Mutex
	kills, given, refused := 0, 0, 0
	for i := range processes {
		wg.Add(1)
		go func() {
			defer wg.Done()
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for time.Now().Before(deadline) {
				killed, g, r := churnOnce(t, c, random, time.Until(deadline))
				mu.Lock()
				given, refused = given+g, refused+r
				if killed {
					kills++
				}
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	peak, now := c.peakTotal(t)
	t.Logf("%d kills; given %d, refused %d (of processes that were not killed); peak %d of %d", kills, given, refused, peak, limit)
	requirePeak(t, peak, limit)
	assert.Greater(t, peak, uint64(limit)*9/10, "the limit was never approached: the test tests nothing")
	assert.Greater(t, kills, 20)
	assert.Zero(t, now)
	assert.Zero(t, c.used(t), "all are gone")
	left := uint64(limit - context)
	fits := left
	if keys != unpaged {
		fits = left / (2 * miB) * (2 * miB)
	}
	lines, _ := c.probe(t, fmt.Sprintf("init ctx 0 info alloc %d alloc 1", fits))
	assert.Equal(t, []string{"init 0", "ctx 0", fmt.Sprintf("info 0 free %d total %d", left, uint64(limit)),
		"alloc 0", "alloc 2"}, lines)
}

// churnOnce runs one process and may kill it on its way.
func churnOnce(t *testing.T, c *container, random *rand.Rand, left time.Duration) (killed bool, given, refused int) {
	life := time.Duration(random.Int64N(int64(4 * time.Second)))
	cmd := c.command(filepath.Join(bin, "churn"), fmt.Sprint(min(left, 3*time.Second).Seconds()),
		fmt.Sprint(random.IntN(1e6)), fmt.Sprint(512*miB), "2")
	out, err := cmd.StdoutPipe()
	if !assert.NoError(t, err) || !assert.NoError(t, cmd.Start()) {
		return
	}
	timer := time.AfterFunc(life, func() { cmd.Process.Kill() })
	defer timer.Stop()
	line, _ := bufio.NewReader(out).ReadString('\n')
	err = cmd.Wait()
	if line == "" {
		return true, 0, 0
	}
	var wrong int
	fmt.Sscanf(line, "given %d refused %d wrong %d", &given, &refused, &wrong)
	assert.Zero(t, wrong)
	return err != nil, given, refused
}

// A single process that just fits is never refused, however often it tries, while
// others come, look and go.
func TestNoSpuriousRefusal(t *testing.T) {
	c := oneGPU(t, giB)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				c.probe(t, "init ctx 0 alloc 2000000000 alloc 2000000000 info alloc 0")
			}
		}()
	}
	script := "init ctx 0" + strings.Repeat(" alloc 1073741824 free 0", 1)
	for range 40 {
		lines, _ := c.probe(t, script)
		require.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "free 0"}, lines)
	}
	close(stop)
	wg.Wait()
}

// Room that a killed process leaves is there from the kill on: an allocation beside it waits for the end of that process,
// and is not refused.
func TestNoFalseRefusalBesideKills(t *testing.T) {
	const limit = 40000 * miB
	program := filepath.Join(t.TempDir(), "refusals")
	require.NoError(t, compile(program, "testdata/refusals.c"))
	c := oneGPU(t, limit)
	c.sim = fakeDriver(t)
	for refused, kills := 0, 0; refused <= 100 || kills <= 10; { // a busy machine takes several runs
		lines, stderr := c.run(t, program, "16", "4", fmt.Sprint(limit), fmt.Sprint(256*miB))
		require.Empty(t, stderr)
		var given, more, wrong, killed int
		_, err := fmt.Sscanf(lines[0], "given %d refused %d false %d kills %d", &given, &more, &wrong, &killed)
		require.NoError(t, err, lines)
		t.Log(lines[0])
		require.Zero(t, wrong)
		refused, kills = refused+more, kills+killed
	}
}

// A process that is killed is seen to be dying until it has ended, at whatever step of its end it loses the processor: else an
// allocation that could wait for its memory is refused.
func TestKilledProcessIsSeenDying(t *testing.T) {
	program, source := filepath.Join(t.TempDir(), "dying"), filepath.Join(root, "limiter", "src")
	require.NoError(t, compile(program, "testdata/dying.c", "-std=gnu11", "-pthread", "-iquote", source, filepath.Join(source, "witness.c")))
	out, err := exec.Command(program, "60").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "missed 0 of some\n", string(out))
}

// The same at each step by itself. Where the first thread has ended, the process is not gone, and is dying if its owner is.
func TestEachStepOfAnEndIsSeen(t *testing.T) {
	program, source := filepath.Join(t.TempDir(), "window"), filepath.Join(root, "limiter", "src")
	require.NoError(t, compile(program, "testdata/window.c", "-std=gnu11", "-iquote", source, filepath.Join(source, "witness.c")))
	for _, test := range []struct{ step, flags, pending, shared, first, code, want string }{
		{"it runs", "400000", "0", "0000000000000000", "R", "0", "dying 0 0 gone 1"},
		{"it has another signal", "400000", "4000", "0000000000004000", "R", "0", "dying 0 0 gone 1"},
		{"the thread has the signal", "400000", "100", "0000000000000100", "R", "0", "dying 1 1 gone 0"},
		{"the thread has taken it off", "400000", "0", "0000000000000100", "R", "0", "dying 1 1 gone 0"},
		{"the kernel has marked it", "400400", "0", "0000000000000100", "R", "9", "dying 1 1 gone 0"},
		{"it exits", "400004", "0", "0000000000000000", "R", "0", "dying 1 1 gone 0"},
		{"the first thread has exited", "400000", "0", "0000000000000000", "Z", "0", "dying 0 1 gone 0"},
		{"and the process is killed", "400000", "0", "0000000000000100", "Z", "0", "dying 1 1 gone 0"},
		{"SIGTERM ends it: the thread has taken SIGKILL off", "400000", "0", "0000000000000000", "R", "15", "dying 1 1 gone 0"},
		{"it dumps its memory", "400000", "0", "0000000000000000", "R", "139", "dying 1 1 gone 0"},
		{"exit(3): the thread has taken SIGKILL off", "400000", "0", "0000000000000000", "R", "768", "dying 1 1 gone 0"},
		{"SIGSTOP has stopped it", "400000", "0", "0000000000000000", "T", "19", "dying 0 0 gone 1"},
		{"a debugger has stopped it", "400000", "0", "0000000000000000", "t", "5", "dying 0 0 gone 1"},
		{"SIGTTOU has stopped it", "400000", "0", "0000000000000000", "T", "22", "dying 0 0 gone 1"},
	} {
		out, err := exec.Command(program, test.flags, test.pending, test.shared, test.first, test.code).CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Equal(t, test.want+"\n", string(out), test.step)
	}
}

// A process without its first thread is not dying: no allocation waits for its end.
func TestRefusalBesideAProcessWithoutItsFirstThread(t *testing.T) {
	c := oneGPU(t, giB)
	cmd := hold(t, c, "init ctx 0 alloc 1073741824 leave")
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	eventually(t, waitLong, "its first thread has ended", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") Z ")
	})
	lines := within(t, waitLong, c, "init ctx 0"+strings.Repeat(" alloc 1", 50))
	assert.Equal(t, slices.Repeat([]string{"alloc 2"}, 50), lines[2:])
}

// Two ask for more than half each, at the same moment, again and again: one gets
// it, every time.
func TestRaceForTheLast(t *testing.T) {
	t.Run("to the byte", func(t *testing.T) { raceForTheLast(t, unpaged, 100*miB, 100*miB) })
	t.Run("in pages", func(t *testing.T) { raceForTheLast(t, "", 100*miB, 100*miB) })
	t.Run("in shared pages", func(t *testing.T) { raceForTheLast(t, "", 10*miB, 3*miB) })
}

func raceForTheLast(t *testing.T, keys string, limit, largest uint64) {
	c := newContainer(t, newMachine(t, "H200:context_mib=1"+keys), gpu{gpuIDs[0], limit}).as(t, keys)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			cmd := c.command(filepath.Join(bin, "churn"), "2", fmt.Sprint(i), fmt.Sprint(largest), "2")
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "%s", out)
		}()
	}
	wg.Wait()
	peak, _ := c.peak(t)
	requirePeak(t, peak, limit)
	assert.Zero(t, c.used(t))
}

// hold starts a process that has its memory, or its context where it takes no memory, and waits.
func hold(t *testing.T, c *container, script string) *exec.Cmd {
	t.Helper()
	words, last := strings.Fields(script), "ctx"
	if slices.Contains(words, "alloc") {
		last = "alloc"
	}
	words = slices.Insert(words, slices.Index(words, last)+2, "sleep", "0") // which writes out what it has printed
	cmd := c.command(filepath.Join(bin, "probe"), words...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for lines := bufio.NewScanner(out); ; {
		require.True(t, lines.Scan(), "the holder has its memory")
		if strings.HasPrefix(lines.Text(), last) {
			require.Equal(t, last+" 0", lines.Text())
			return cmd
		}
	}
}

func TestKilledMemoryIsReusable(t *testing.T) {
	c := oneGPU(t, giB)
	for range 10 {
		cmd := hold(t, c, "init ctx 0 alloc 1073741824 sleep 60000")
		lines, _ := c.probe(t, "init ctx 0 alloc 1")
		require.Equal(t, "alloc 2", lines[2], "while it lives")
		require.NoError(t, cmd.Process.Kill())
		cmd.Wait()
		lines, _ = c.probe(t, "init ctx 0 alloc 1073741824")
		require.Equal(t, "alloc 0", lines[2], "at once after its death")
	}
}

// A process that can't open a file any more has the memory of the dead all the same, and not that of the living.
func TestKilledMemoryIsReusableWithoutOpening(t *testing.T) {
	for _, state := range []string{"chroot", "fillfds"} {
		t.Run(state, func(t *testing.T) {
			c := oneGPU(t, giB)
			holder := hold(t, c, "init ctx 0 alloc 1073741824 sleep 60000")
			p := talk(t, c.command(filepath.Join(bin, "probe"), strings.Fields("init ctx 0 alloc 1 "+state+" alloc 1 line info line alloc 1073741824 info free 0 info")...))
			p.hearAll(t, "init 0", "ctx 0", "alloc 2", state+" 0", "alloc 2")
			require.NoError(t, holder.Process.Kill())
			holder.Wait()
			p.tell(t, "")
			p.hearAll(t, "info 0 free 1073741824 total 1073741824")

			holder = hold(t, c, "init ctx 0 alloc 1073741824 sleep 60000")
			require.NoError(t, holder.Process.Kill())
			holder.Wait()
			p.tell(t, "")
			p.hearEnd(t, "alloc 0", "info 0 free 0 total 1073741824", "free 0", "info 0 free 1073741824 total 1073741824")
		})
	}
}

// One that is dead but that its parent has not waited for is dead.
func TestZombieIsDead(t *testing.T) {
	c := oneGPU(t, giB)
	cmd := hold(t, c, "init ctx 0 alloc 1073741824 sleep 60000")
	require.NoError(t, cmd.Process.Kill())
	eventually(t, waitLong, "a zombie", func() bool {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		return strings.Contains(string(stat), ") Z ")
	})
	lines, _ := c.probe(t, "init ctx 0 alloc 1073741824")
	cmd.Wait()
	assert.Equal(t, "alloc 0", lines[2])
}

// closefrom() takes the slot's lock away; the process lives, and so does its memory.
func TestClosedDescriptors(t *testing.T) {
	c := oneGPU(t, giB)
	cmd := hold(t, c, "init ctx 0 alloc 1073741824 closefds sleep 60000")
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	eventually(t, waitLong, "its descriptors are closed", func() bool {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
		return err == nil && !slices.ContainsFunc(open, func(fd os.DirEntry) bool { return len(fd.Name()) > 1 || fd.Name() > "2" })
	})
	for range 5 {
		lines, _ := c.probe(t, "init ctx 0 alloc 1")
		require.Equal(t, "alloc 2", lines[2])
	}
	assert.Equal(t, uint64(giB), c.used(t))
}

// After exec the old program's memory is gone, though the process is there.
func TestExec(t *testing.T) {
	c := oneGPU(t, giB)
	p := talk(t, c.command(filepath.Join(bin, "probe"), strings.Fields("init ctx 0 alloc 1073741824 line exec sleep 60")...))
	p.hearAll(t, "init 0", "ctx 0", "alloc 0")
	require.Equal(t, uint64(giB), c.used(t))
	p.tell(t, "")
	eventually(t, waitLong, "another program", func() bool { return c.used(t) == 0 })
	lines, _ := c.probe(t, "init ctx 0 alloc 1073741824")
	assert.Equal(t, "alloc 0", lines[2])
}

// A forked child neither uses nor frees its parent's slot, and as long as it keeps
// the driver's descriptors the dead parent's memory is not given to others.
func TestFork(t *testing.T) {
	c := oneGPU(t, giB)
	lines, stderr := c.probe(t, "init ctx 0 alloc 1000000000 fork alloc 5 free 0 init join info alloc 73741825 alloc 73741824")
	assert.Empty(t, stderr)
	assert.Contains(t, lines, "child 0")
	assert.Equal(t, []string{"info 0 free 73741824 total 1073741824", "alloc 2", "alloc 0"}, lines[len(lines)-3:])
	assert.Zero(t, c.used(t))

	cmd := c.command(filepath.Join(bin, "probe"), strings.Fields("init ctx 0 alloc 1073741824 orphan line")...)
	in, end, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	cmd.Stdin = in
	cmd.Run()
	lines, _ = c.probe(t, "init ctx 0 alloc 1")
	assert.Equal(t, "alloc 2", lines[2], "the orphan still has the driver's files")
	require.NoError(t, end.Close())
	eventually(t, waitLong, "the orphan is gone", func() bool { return c.used(t) == 0 })
	lines, _ = c.probe(t, "init ctx 0 alloc 1073741824")
	assert.Equal(t, "alloc 0", lines[2])
}

// A process of another PID namespace can't be looked up; the other witnesses do.
func TestOtherNamespace(t *testing.T) {
	require.NoError(t, exec.Command("unshare", "-pf", "true").Run(), "PID namespaces, as root")
	c := oneGPU(t, giB)
	cmd := c.command("unshare", "-pf", "--kill-child", "--mount-proc", filepath.Join(bin, "probe"))
	cmd.Args = append(cmd.Args, strings.Fields("init ctx 0 alloc 1073741824 sleep 60000")...)
	require.NoError(t, cmd.Start())
	eventually(t, waitLong, "its memory", func() bool { return c.used(t) == giB })
	lines, _ := c.probe(t, "init ctx 0 alloc 1")
	assert.Equal(t, "alloc 2", lines[2])
	require.NoError(t, cmd.Process.Kill())
	cmd.Wait()
	eventually(t, waitLong, "reusable", func() bool {
		lines, _ = c.probe(t, "init ctx 0 alloc 1073741824")
		return lines[2] == "alloc 0"
	})
}

// The helper thread must not stand in the way of setuid, and the slow path works
// without root.
func TestSetuid(t *testing.T) {
	require.Zero(t, os.Getuid(), "run the tests as root")
	c := oneGPU(t, giB)
	for _, dir := range []string{c.dir, filepath.Dir(c.dir)} {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	holder := hold(t, c, "init ctx 0 alloc 1073741824 sleep 60000")
	user := c.command(filepath.Join(bin, "probe"), strings.Fields("init ctx 0 setuid 65534 alloc 1 line alloc 1073741824 info")...)
	var complaint strings.Builder
	user.Stderr = &complaint
	p := talk(t, user)
	p.hearAll(t, "init 0", "ctx 0", "setuid 0", "alloc 2")
	require.NoError(t, holder.Process.Kill())
	holder.Wait()
	p.tell(t, "")
	p.hearEnd(t, "alloc 0", "info 0 free 0 total 1073741824")
	assert.Empty(t, complaint.String())
}

// A daemon's first process goes, and with it what it had, after its child closes
// the driver's files.
func TestDaemon(t *testing.T) {
	c := oneGPU(t, giB)
	c.probe(t, "init ctx 0 alloc 1073741824 daemon closefds sleep 60")
	eventually(t, waitLong, "the parent's memory is back", func() bool { return c.used(t) == 0 })
	lines, _ := c.probe(t, "init ctx 0 alloc 1073741824")
	assert.Equal(t, "alloc 0", lines[2])
}

// A stopped process (a debugger, a freezer) may cost the others time, never more,
// whatever it was in the middle of. On the fake driver, which has no locks: those of
// the simulated one, which a stopped process may hold, are not what is asked about.
func TestStoppedProcessDelaysNoProcess(t *testing.T) {
	c := oneGPU(t, giB)
	c.sim = fakeDriver(t)
	for round := range 10 {
		var stopped []*exec.Cmd
		for i := range 4 {
			cmd := c.command(filepath.Join(bin, "churn"), "20", fmt.Sprint(round*10+i), fmt.Sprint(512*miB), "2")
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
			stopped = append(stopped, cmd)
		}
		signal := func(s syscall.Signal) {
			for _, cmd := range stopped {
				require.NoError(t, cmd.Process.Signal(s))
			}
		}
		for held := false; !held; held = c.used(t) > 0 { // at times none of them holds memory
			signal(syscall.SIGCONT)
			eventually(t, waitLong, "they are at it", func() bool { return c.used(t) > giB/2 })
			time.Sleep(time.Duration(round*7) * time.Millisecond)
			signal(syscall.SIGSTOP)
		}
		lines := within(t, waitLong, c, "init ctx 0 alloc 1073741824 alloc 1 info")
		require.Equal(t, []string{"init 0", "ctx 0", "alloc 2"}, lines[:3])
		for _, cmd := range stopped {
			cmd.Process.Kill()
			cmd.Wait()
		}
		lines = within(t, waitLong, c, "init ctx 0 alloc 1073741824 alloc 1")
		require.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "alloc 2"}, lines)
	}
}

// within runs a script that must not take longer.
func within(t *testing.T, limit time.Duration, c *container, script string) []string {
	t.Helper()
	cmd := c.command(filepath.Join(bin, "probe"), strings.Fields(script)...)
	timer := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.Output()
	require.NoError(t, err, "it hangs")
	return strings.Split(strings.TrimRight(string(out), "\n"), "\n")
}

// What a call costs depends on the processes that live, not on the most that ever did: a sum leaves out the slots of the
// others, and the first allocation beside the dead clears theirs.
func TestFormerProcessesAreForgotten(t *testing.T) {
	c := oneGPU(t, giB)
	formerProcesses(t, c, 700)
	require.Equal(t, 700, c.slotsSummed(t))
	p := talk(t, c.command(filepath.Join(bin, "probe"), strings.Fields("init ctx 0 alloc 4096 line alloc 1073737728 alloc 1")...))
	p.hearAll(t, "init 0", "ctx 0", "alloc 0")
	assert.Equal(t, 1, c.slotsSummed(t))
	p.tell(t, "")
	p.hearEnd(t, "alloc 0", "alloc 2")

	var former []*exec.Cmd
	for range 20 {
		former = append(former, hold(t, c, "init ctx 0 alloc 4096 sleep 60000"))
	}
	assert.GreaterOrEqual(t, c.slotsSummed(t), 20)
	p = talk(t, c.command(filepath.Join(bin, "probe"), strings.Fields("init ctx 0 line alloc 4096 line alloc 1073737728 alloc 1")...))
	p.hearAll(t, "init 0", "ctx 0")
	for _, cmd := range former {
		require.NoError(t, cmd.Process.Kill())
		cmd.Wait()
	}
	p.tell(t, "")
	p.hearAll(t, "alloc 0")
	assert.Equal(t, 1, c.slotsSummed(t))
	p.tell(t, "")
	p.hearEnd(t, "alloc 0", "alloc 2")
}

// slotsSummed is the number of slots that a sum over the usage file visits.
func (c *container) slotsSummed(t *testing.T) (count int) {
	t.Helper()
	file, err := os.ReadFile(c.usage())
	require.NoError(t, err)
	for _, b := range file[1032 : 1032+1024/8] {
		count += bits.OnesCount8(b)
	}
	return count
}

// All slots are taken: the next process gets an error, and has nothing.
func TestSlotsRunOut(t *testing.T) {
	c := oneGPU(t, giB)
	f, err := os.OpenFile(c.usage(), os.O_RDWR, 0)
	require.NoError(t, err)
	for i := range int64(limiter.MaxProcesses) { // slots with an owner that is alive
		_, err = f.WriteAt([]byte{1, 0, 0, 0, 1, 0, 0, 0}, 4096+i*1280)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	lines, stderr := c.probe(t, "init ctx 0 alloc 1")
	assert.Equal(t, []string{"init 3", "ctx 3", "alloc 201"}, lines)
	assert.Contains(t, stderr, "slots")
}
