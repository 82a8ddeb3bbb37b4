package ledger_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

// TestMain is also the main of the helper processes that the tests below start from their own binary. The
// variable selects the helper.
func TestMain(m *testing.M) {
	helper, dir := os.Getenv("GRANT_TEST_HELPER"), os.Getenv("GRANT_TEST_DIR")
	var err error
	switch helper {
	case "":
		os.Exit(m.Run())
	case "churn":
		err = churn(dir, os.Getenv("GRANT_TEST_NAME"))
	case "crowd":
		err = crowd(dir, os.Getenv("GRANT_TEST_NAME"))
	case "block":
		err = blockAndUnblock(dir)
	case "resize":
		err = resizeForever(dir)
	case "suspended reader":
		err = readAndSuspend(dir)
	default:
		err = fmt.Errorf("no such helper: %q", helper)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startHelper starts a helper process, which is killed with the test.
func startHelper(t *testing.T, helper, dir, name string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	command := exec.Command(self)
	command.Env = append(os.Environ(), "GRANT_TEST_HELPER="+helper, "GRANT_TEST_DIR="+dir, "GRANT_TEST_NAME="+name)
	command.Stderr = os.Stderr
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill() // it has ended where the test went well
		_ = command.Wait()
	})
	return command
}

// churn claims, releases and removes for ever, and logs each step before and
// after it. Its log and its ids carry its name.
func churn(dir, name string) error {
	ledger, err := ledger.Open(filepath.Join(dir, "state"))
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(uint64(os.Getpid()), 0))
	for {
		id := fmt.Sprintf("%s-%d", name, random.IntN(6))
		step := []string{"claim", "claim", "release", "remove"}[random.IntN(4)]
		fmt.Fprintf(log, "begin %s %s\n", step, id)
		switch step {
		case "claim":
			c := withTurns(id, share(100, 1))
			c.TurnID = limiter.TurnIDOf(id, "nonce") // files of others stay until Reconcile
			_, err = ledger.Claim(background, c, testGPUs(), writeFiles)
		case "release":
			err = ledger.Release(background, id)
		case "remove":
			err = ledger.Remove(background, id)
		}
		if err != nil && !errors.Is(err, grant.ErrOverbooked) {
			return err
		}
		fmt.Fprintf(log, "end %s %s %v\n", step, id, err == nil)
	}
}

// model is the state of the ids by a log: their state, and the step during which the process was killed.
type model struct {
	state        map[string]ledger.State
	step, stepID string
}

// readLog plays a log to its end.
func readLog(t *testing.T, path string) model {
	t.Helper()
	m := model{state: map[string]ledger.State{}}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return m // killed before its first step
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if !strings.HasSuffix(line, "\n") {
			break // killed in the middle of the write
		}
		fields := strings.Fields(line)
		if fields[0] == "begin" {
			m.step, m.stepID = fields[1], fields[2]
			continue
		}
		if fields[3] == "true" {
			m.apply()
		}
		m.step, m.stepID = "", ""
	}
	return m
}

// apply does the step that is under way.
func (m *model) apply() {
	known := m.state[m.stepID] != ""
	switch {
	case m.step == "claim":
		m.state[m.stepID] = ledger.StateActive
	case m.step == "release" && known:
		m.state[m.stepID] = ledger.StateReleased
	case m.step == "remove":
		delete(m.state, m.stepID)
	}
}

// TestKilledAtAnyMoment kills processes while they change the ledger, and
// compares what is left with what they had finished. Only the step that was
// under way may have happened or not.
func TestKilledAtAnyMoment(t *testing.T) {
	const rounds, processes = 25, 3
	random := rand.New(rand.NewPCG(3, 4))
	interrupted := 0
	for round := range rounds {
		dir := shmDir(t)
		state := filepath.Join(dir, "state")
		var commands []*exec.Cmd
		for p := range processes {
			commands = append(commands, startHelper(t, "churn", dir, fmt.Sprint("p", p)))
		}
		time.Sleep(time.Duration(20+random.IntN(60)) * time.Millisecond)
		for _, p := range random.Perm(processes) {
			require.NoError(t, commands[p].Process.Kill())
			_ = commands[p].Wait() // killed: always an error
			require.Equal(t, syscall.SIGKILL, commands[p].ProcessState.Sys().(syscall.WaitStatus).Signal(), "round %d: it failed by itself", round)
			time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
		}
		if data, err := os.ReadFile(filepath.Join(state, "generation")); err == nil && len(data) == 8 && data[0]%2 == 1 {
			interrupted++
		}

		got := snapshot(t, openLedger(t, state))
		want := map[string]ledger.State{}
		for p := range processes {
			m := readLog(t, filepath.Join(dir, fmt.Sprintf("p%d.log", p)))
			if m.step != "" && states(got)[m.stepID] != m.state[m.stepID] {
				m.apply()
			}
			for id, s := range m.state {
				want[id] = s
			}
		}
		require.Equal(t, want, states(got), "round %d", round)
		requireConsistent(t, state, got)
		requireTurns(t, state, openLedger(t, state))
	}
	t.Logf("%d of %d rounds ended inside a change", interrupted, rounds)
}

// requireConsistent checks that the directories contain what the snapshot contains, complete, and nothing
// else.
func requireConsistent(t *testing.T, state string, s *ledger.Snapshot) {
	t.Helper()
	gpus := map[string]ledger.Usage{}
	names := []string{}
	for _, e := range s.Entries {
		require.NoError(t, e.Problem)
		names = append(names, e.ContainerID)
		record := "grant.json"
		if e.State == ledger.StateReleased {
			record = "released.json"
		} else {
			u := gpus[e.Shares[0].UUID]
			u.MemoryMiB += e.Shares[0].MemoryMiB
			u.CorePercent += e.Shares[0].CorePercent
			u.Replicas++
			gpus[e.Shares[0].UUID] = u
		}
		entries, err := os.ReadDir(filepath.Join(state, "containers", e.ContainerID))
		require.NoError(t, err)
		var files []string
		for _, file := range entries {
			files = append(files, file.Name())
		}
		require.ElementsMatch(t, []string{record, "limits", "usage"}, files, e.ContainerID)
	}
	require.Equal(t, names, dirs(t, state))
	require.Equal(t, gpus, s.GPUs)
}

// tally is memory that the crowd shares: what its members hold together by their
// own count, and how often they were refused and let in.
type tally struct {
	held, replicas, refused, admitted atomic.Int64
}

// openTally maps the tally's file.
func openTally(path string) (*tally, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	size := int(unsafe.Sizeof(tally{}))
	if err := file.Truncate(int64(size)); err != nil {
		return nil, err
	}
	data, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*tally)(unsafe.Pointer(&data[0])), nil
}

// crowdGPU has space for a few of the crowd only.
var crowdGPU = grant.GPU{UUID: gpuA, MemoryMiB: 1000, CorePercent: 100, Replicas: 7}

// crowd claims and removes from eight goroutines, and fails as soon as all
// processes together hold more than the GPU has.
func crowd(dir, name string) error {
	ledger, err := ledger.Open(filepath.Join(dir, "state"))
	if err != nil {
		return err
	}
	total, err := openTally(filepath.Join(dir, "tally"))
	if err != nil {
		return err
	}
	failures := make([]error, 8)
	var group sync.WaitGroup
	for g := range failures {
		group.Go(func() { failures[g] = crowdMember(ledger, total, name+"-"+strconv.Itoa(g)) })
	}
	group.Wait()
	return errors.Join(failures...)
}

func crowdMember(ledger *ledger.Ledger, total *tally, id string) error {
	random := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(len(id))+uint64(id[len(id)-1])))
	gpus := map[string]grant.GPU{gpuA: crowdGPU}
	ctx, cancel := context.WithTimeout(background, 2*time.Minute)
	defer cancel()
	for range 40 {
		memory := int64(50 + random.IntN(300))
		_, err := ledger.Claim(ctx, claimOf(id, share(memory, random.IntN(40))), gpus, nil)
		if errors.Is(err, grant.ErrOverbooked) {
			total.refused.Add(1)
			continue
		}
		if err != nil {
			return err
		}
		total.admitted.Add(1)
		if held, replicas := total.held.Add(memory), total.replicas.Add(1); held > crowdGPU.MemoryMiB || replicas > int64(crowdGPU.Replicas) {
			return fmt.Errorf("overbooked: %d MiB in %d replicas", held, replicas)
		}
		time.Sleep(time.Duration(random.IntN(500)) * time.Microsecond)
		total.held.Add(-memory)
		total.replicas.Add(-1)
		end := ledger.Remove
		if random.IntN(2) == 0 {
			end = ledger.Release
		}
		if err := errors.Join(end(ctx, id), ledger.Remove(ctx, id)); err != nil {
			return err
		}
	}
	return nil
}

func TestCrowdNeverOverbooks(t *testing.T) {
	dir := shmDir(t)
	var commands []*exec.Cmd
	for p := range 4 {
		commands = append(commands, startHelper(t, "crowd", dir, fmt.Sprint("p", p)))
	}
	for _, command := range commands {
		require.NoError(t, command.Wait())
	}
	total, err := openTally(filepath.Join(dir, "tally"))
	require.NoError(t, err)
	assert.NotZero(t, total.refused.Load(), "the GPU must have been too small for all")
	assert.NotZero(t, total.admitted.Load())
	t.Logf("%d claims, %d refusals", total.admitted.Load(), total.refused.Load())
	assert.Empty(t, dirs(t, filepath.Join(dir, "state")))
	data, err := os.ReadFile(filepath.Join(dir, "state", "generation"))
	require.NoError(t, err)
	assert.Zero(t, binary.LittleEndian.Uint64(data)%2)
}

// shmDir is a directory on a tmpfs where there is one, as the ledger's is.
func shmDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gpuslice-grant-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}
