//go:build root

package simdriver

import (
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// GPU time is counted, not the wall's: a slow machine changes neither side of these ratios. The windows are wide, so that
// a process that the machine lets wait still has work queued; so no kernels are shorter than a full queue of them needs for that.

// gain is the GPU time that the processes and the GPU got between two looks.
type gain struct {
	gpu     uint64            // of the GPU, busy
	clock   uint64            // that passed on it
	clients map[int]uint64    // by the host's PID
	groups  map[uint64]uint64 // by id
}

func measure(s *Sim, during time.Duration) gain {
	before := s.Status()
	time.Sleep(during)
	after := s.Status()
	g := gain{
		gpu:     after.GPUs[0].BusyNanoseconds - before.GPUs[0].BusyNanoseconds,
		clock:   after.GPUs[0].ClockNanoseconds - before.GPUs[0].ClockNanoseconds,
		clients: map[int]uint64{}, groups: map[uint64]uint64{},
	}
	for _, c := range after.Clients {
		g.clients[c.HostPID] = c.GPUs[0].BusyNanoseconds
	}
	for _, c := range before.Clients {
		g.clients[c.HostPID] -= c.GPUs[0].BusyNanoseconds
	}
	for _, c := range after.Groups {
		g.groups[c.ID] = c.GPUs[0].BusyNanoseconds
	}
	for _, c := range before.Groups {
		g.groups[c.ID] -= c.GPUs[0].BusyNanoseconds
	}
	return g
}

func (g gain) share(p *Process) float64 { return float64(g.clients[p.Process.Pid]) / float64(g.clock) }

// waitAllBusy waits until each process has had a turn and has 0.4 s of work queued, of half a second at most: for so long the machine
// need not let it run.
func waitAllBusy(t *testing.T, s *Sim, processes int) {
	t.Helper()
	require.Eventually(t, func() bool {
		status := s.Status()
		return len(status.Clients) == processes && !slices.ContainsFunc(status.Clients, func(c Client) bool {
			return c.GPUs[0].BusyNanoseconds < 10e6 || c.GPUs[0].QueuedNanoseconds-c.GPUs[0].BusyNanoseconds < 400e6
		})
	}, time.Minute, 20*time.Millisecond)
}

// Source: github.com/NVIDIA/k8s-device-plugin, README, "With CUDA Time-Slicing": each process gets an equal amount of time.
func TestRealBusyProcessesShareAGPUEqually(t *testing.T) {
	for _, test := range []struct {
		description string
		variant     Variant
		kernels     []string // of each process
	}{
		{"one has it all", Plain, []string{"500"}},
		{"kernels of one length", Plain, []string{"500", "500"}},
		{"short ones and ones of many turns", Plain, []string{"500", "50000"}},
		{"three, one with a mix", Plain, []string{"600", "50000", "500,5000,20000"}},
		{"under the sanitizers", Sanitized, []string{"600", "50000"}},
		{"under the thread sanitizer", Threads, []string{"500", "20000", "500"}},
	} {
		t.Run(test.description, func(t *testing.T) {
			s := New(t, test.variant, "H200")
			var list []*Process
			for _, us := range test.kernels {
				list = append(list, s.Start("workloads/spin", "--seconds=60", "--window-ms=1000", "--kernels-us="+us))
			}
			waitAllBusy(t, s, len(list))
			g := measure(s, 700*time.Millisecond)
			used := 1.
			if len(list) > 1 {
				used = 2000. / 2020 // of each turn, with the switch before it
			}
			for _, p := range list {
				require.InDelta(t, used/float64(len(list)), g.share(p), 0.02, "%v", g)
			}
			require.InDelta(t, used, float64(g.gpu)/float64(g.clock), 0.02)
		})
	}
}

// Two containers: each process is number 1 of a PID namespace of its own. One is killed, another comes, again and again.
func TestProcessesOfContainersShareAGPUEqually(t *testing.T) {
	s := New(t, Plain, "H200")
	start := func(us string) *Process {
		cmd := s.Command("workloads/spin", "--seconds=60", "--window-ms=1000", "--kernels-us="+us)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
		return s.StartCommand(cmd)
	}
	first, second := start("500"), start("7000")
	for range 10 {
		second.Kill()
		second = start("7000")
	}
	waitAllBusy(t, s, 2)
	g := measure(s, 500*time.Millisecond)
	require.InDelta(t, 0.5, g.share(first), 0.02)
	require.InDelta(t, 0.5, g.share(second), 0.02)
	status := s.Status()
	require.Len(t, status.Clients, 2)
	for _, c := range status.Clients {
		require.Equal(t, 1, c.PID)
	}
}

// An event pair measures wall time, with the time slices of other processes in it. How much more depends on
// the machine.
func TestEventsTellTheTurnsOfOthers(t *testing.T) {
	s := New(t, Plain, "H200")
	other := s.Start("workloads/spin", "--seconds=60", "--window-ms=1000", "--kernels-us=500")
	waitAllBusy(t, s, 1)
	for us, least := range map[string]float64{"40000": 1.9, "1000": 1} {
		values, code := s.Run("workloads/launch", "--count=1", "--duration-us="+us)
		require.Zero(t, code)
		event, err := strconv.ParseFloat(values["event_ms"], 64)
		require.NoError(t, err)
		kernel, err := strconv.ParseFloat(values["kernel_ms"], 64)
		require.NoError(t, err)
		require.GreaterOrEqual(t, event/kernel, least)
	}
	other.Kill()
}

func TestSliceLengthIsASetting(t *testing.T) {
	s := New(t, Plain, "H200:slice_us=10000")
	other := s.Start("workloads/spin", "--seconds=60", "--window-ms=1000", "--kernels-us=500")
	waitAllBusy(t, s, 1)
	values, code := s.Run("workloads/launch", "--count=1", "--duration-us=25000")
	require.Zero(t, code)
	event, err := strconv.ParseFloat(values["event_ms"], 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, event, 54.9) // three turns, two of the other between, and one before the event behind them
	other.Kill()
}

// What a killed process had queued is dropped; the other has the GPU for itself.
func TestAKilledProcessLeavesTheGPUToTheOthers(t *testing.T) {
	s := New(t, Plain, "H200")
	survivor := s.Start("workloads/spin", "--seconds=60", "--window-ms=1000", "--kernels-us=500")
	victim := s.Start("workloads/spin", "--seconds=60", "--window-ms=10000", "--kernels-us=50000")
	waitAllBusy(t, s, 2)
	require.InDelta(t, 0.5, measure(s, 300*time.Millisecond).share(survivor), 0.03)
	victim.Kill()
	s.Status()
	g := measure(s, 500*time.Millisecond)
	require.InDelta(t, 1, g.share(survivor), 0.02)
	survivor.Kill()
	require.Empty(t, s.Status().Clients)
	require.Zero(t, measure(s, 50*time.Millisecond).gpu)
}

// Killed at every step of the accounting of time, a process leaves a GPU on which nothing is counted twice or lost.
func TestKilledAtEveryStepOfGPUTime(t *testing.T) {
	s := New(t, Plain, "H200")
	s.Env = []string{"SIMGPU_GROUP=7"}
	other := s.Start("workloads/spin", "--seconds=600", "--window-ms=1000", "--kernels-us=700")
	killed := 0
	for point := 1; point < 90; point++ {
		s.Env = []string{"SIMGPU_GROUP=7", "SIMGPU_CRASH=" + strconv.Itoa(point)}
		cmd := s.Command("workloads/launch", "--count=3", "--duration-us=1500")
		if cmd.Run() != nil {
			killed++
		}
	}
	s.Env = []string{"SIMGPU_GROUP=7"}
	require.Greater(t, killed, 40)
	waitAllBusy(t, s, 1)
	g := measure(s, 200*time.Millisecond)
	require.Equal(t, g.gpu, g.groups[7])
	require.InDelta(t, 1, g.share(other), 0.05)
	status := s.Status()
	require.Equal(t, status.GPUs[0].BusyNanoseconds, status.Groups[0].GPUs[0].BusyNanoseconds)
	values, code := s.Run("workloads/launch", "--count=10", "--duration-us=1000")
	require.Zero(t, code)
	require.EqualValues(t, 10, values.Int("launches"))
}

func TestProcessesKilledAtRandom(t *testing.T) {
	for _, variant := range []Variant{Plain, Sanitized} {
		t.Run(fmt.Sprintf("%q", variant), func(t *testing.T) {
			s := New(t, variant, "H200")
			s.Env = []string{"SIMGPU_GROUP=7"}
			first := s.Start("workloads/spin", "--seconds=600", "--window-ms=1000", "--kernels-us=600")
			for i := range 25 {
				victim := s.Start("workloads/spin", "--seconds=60", "--mode=sync", "--kernels-us="+strconv.Itoa(5+i*i))
				time.Sleep(time.Duration(i%7) * time.Millisecond)
				victim.Kill()
			}
			last := s.Start("workloads/spin", "--seconds=600", "--window-ms=1000", "--kernels-us=2500")
			waitAllBusy(t, s, 2)
			g := measure(s, 500*time.Millisecond)
			require.InDelta(t, 0.5, g.share(first), 0.02)
			require.InDelta(t, 0.5, g.share(last), 0.02)
			status := s.Status()
			require.Equal(t, status.GPUs[0].BusyNanoseconds, status.Groups[0].GPUs[0].BusyNanoseconds)
		})
	}
}

// A process that waits for each of its kernels gets what it asks for: all kernel time that it launched, and no more.
func TestWaitingLaunchers(t *testing.T) {
	s := New(t, Plain, "H200:event_ns=0") // all of its busy time is that of kernels
	for _, call := range []string{"kernel", "ex", "cooperative", "legacy"} {
		before := s.Status().GPUs[0]
		values, code := s.Run("workloads/spin", "--seconds=0.1", "--mode=sync", "--kernels-us=5,200", "--call="+call)
		require.Zero(t, code, call)
		after := s.Status().GPUs[0]
		require.EqualValues(t, values.Int("launches"), after.Launches-before.Launches, call)
		require.EqualValues(t, values.Int("launches_5_us")*5000+values.Int("launches_200_us")*200_000,
			after.BusyNanoseconds-before.BusyNanoseconds, call)
	}
}

func TestCooperativeLaunchOnSeveralDevices(t *testing.T) {
	for _, variant := range []Variant{Plain, Sanitized} {
		s := New(t, variant, "H200", "H200")
		text, err := s.Command("sim/check", "devices-together").CombinedOutput()
		require.NoError(t, err, "%s", text)
		for _, gpu := range s.Status().GPUs {
			require.NotZero(t, gpu.Launches)
		}
	}
}

func TestDriversKnowOnlyTheFunctionsOfTheirTime(t *testing.T) {
	s := New(t, Plain, "H200")
	for _, test := range []struct {
		cuda  string
		ex    int // spin --call=ex by cuGetProcAddress: 0 it is there, 4 it is not
		v2    bool
		works string
	}{
		{"11.4", 4, false, "getproc"},
		{"12.2", 0, true, "getproc_v2"},
		{"12.8", 0, true, "getproc_v2"},
		{"13.0", 0, true, "getproc_v2"},
	} {
		s.Ctl("set", "driver", "cuda="+test.cuda)
		_, code := s.Run("workloads/spin", "--seconds=0.01", "--call=ex", "--lookup=getproc")
		require.Equal(t, test.ex, code, test.cuda)
		_, code = s.Run("workloads/spin", "--seconds=0.01", "--lookup="+test.works)
		require.Zero(t, code, test.cuda)
	}
}
