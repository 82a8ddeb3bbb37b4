package nriplugin_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

// seen is an Observer that records its calls.
type seen struct {
	mu       sync.Mutex
	handled  map[string]int
	refusals []string
}

func (s *seen) Handled(event string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if took < 0 {
		event = "negative"
	}
	s.handled[event]++
}

func (s *seen) Refused(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals = append(s.refusals, reason)
}

// events are those that were handled so far.
func (s *seen) events() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.handled))
}

// wait returns after so many calls for an event: the runtime has its answer before.
func (s *seen) wait(t *testing.T, event string, times int) {
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.handled[event] == times
	}, time.Minute, time.Millisecond, "%s %d times", event, times)
}

func TestObserver(t *testing.T) {
	s := &seen{handled: map[string]int{}}
	f := newFixture(t, func(c *nriplugin.Config) { c.Observer = s })
	pod, ctr := newPod("p", hami(gpuA, 50000, 10)), newContainer("main")
	_, err := f.runtime.create(pod, ctr)
	require.NoError(t, err)
	for _, refused := range []map[string]string{
		hami(gpuA, 50000, 10), {"gpuslice.io/grant": "{"}, hami("GPU-cccccccc-0000-4000-8000-000000000003", 1, 1),
	} {
		_, err = f.runtime.create(newPod("q", refused), newContainer("main"))
		require.Error(t, err)
	}
	whole := newContainer("main")
	whole.Linux = &api.LinuxContainer{Devices: []*api.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}}}
	_, err = f.runtime.create(newPod("none", nil), whole)
	require.ErrorContains(t, err, "has no gpuslice grant")
	f.runtime.remove(pod, ctr) // as those that were refused
	s.wait(t, "CreateContainer", 5)
	s.wait(t, "StopContainer", 5)
	s.wait(t, "RemoveContainer", 5)
	s.wait(t, "Synchronize", 1)
	assert.Equal(t, []string{"overbooked", "malformed", "unknown_gpu", "no_grant"}, s.refusals)
	for event := range s.handled {
		assert.Contains(t, nriplugin.Events, event)
	}
	for _, reason := range append(s.refusals, "late", "not_asked", "changed", "not_reconciled", "other") {
		assert.Contains(t, nriplugin.Reasons(), reason)
	}
}

// Refusals for an unknown reason, or for lack of time, are reported too.
func TestObserverOfOtherRefusals(t *testing.T) {
	s := &seen{handled: map[string]int{}}
	f := newFixtureInTime(t, 2*time.Second, func(c *nriplugin.Config) {
		c.Observer = s
		c.Populate = func(string, ledger.Claim) error { return errors.New("the disk is on fire") }
	})
	_, err := f.runtime.create(newPod("p", hami(gpuA, 1000, 10)), newContainer("main"))
	require.ErrorContains(t, err, "on fire")
	release := holdLedger(t, f.ledger)
	_, err = f.runtime.create(newPod("p", hami(gpuA, 1000, 10)), newContainer("main"))
	require.Error(t, err)
	release()
	assert.Equal(t, "other", s.refusals[0])
	assert.Len(t, s.refusals, 2)
}

// A claim that could not be released is reported until it is.
func TestGone(t *testing.T) {
	f := newFixtureInTime(t, 2*time.Second)
	pod, ctr := newPod("p", hami(gpuA, 1000, 10)), newContainer("main")
	_, err := f.runtime.create(pod, ctr)
	require.NoError(t, err)
	require.Empty(t, f.plugin.Gone())
	release := holdLedger(t, f.ledger)
	f.runtime.remove(pod, ctr)
	require.Equal(t, []string{ctr.GetId()}, f.plugin.Gone())
	release()
	require.Eventually(t, func() bool { return len(f.plugin.Gone()) == 0 && len(f.dirs()) == 0 }, time.Minute, 5*time.Millisecond)
}

// A claim that was kept because a process used it, of a container that the runtime doesn't
// list, is one that leaked as soon as the process is gone.
func TestGoneWhenItsProcessIs(t *testing.T) {
	f := newFixture(t, func(c *nriplugin.Config) {
		c.Populate = func(dir string, _ ledger.Claim) error {
			return limiter.CreateUsage(limiter.UsagePath(dir), []string{gpuA})
		}
	})
	pod, ctr := newPod("p", hami(gpuA, 1000, 10)), newContainer("main")
	_, err := f.runtime.create(pod, ctr)
	require.NoError(t, err)
	usage, err := os.OpenFile(limiter.UsagePath(f.ledger.Dir(ctr.Id)), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, unix.FcntlFlock(usage.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 1<<40 + 1, Len: 1}))
	f.stop()
	f.runtime.stop(pod, ctr) // while the agent is stopped
	f.start()
	require.Equal(t, []string{ctr.GetId()}, f.claims())
	require.Empty(t, f.plugin.Gone(), "its process lives")
	require.NoError(t, usage.Close())
	require.Equal(t, []string{ctr.GetId()}, f.plugin.Gone())
}

// docker reserves a GPU's whole memory, as the runtime wrapper does, for a container that
// the process makes.
func (f *fixture) docker(id string, creator int) {
	record, err := orphans.NewRecord("/proc", creator)
	require.NoError(f.t, err)
	claim := ledger.Claim{
		ContainerID: id, Owner: ledger.OwnerRuntime, Container: "web",
		Shares: []grant.Share{{UUID: gpuA, MemoryMiB: 81920}},
	}
	_, err = f.config.Ledger.Claim(context.Background(), claim, f.config.GPUs(), record.Write)
	require.NoError(f.t, err)
}

// sleeper starts a process, which is docker's container, and how to kill it.
func sleeper(t testing.TB) (pid int, kill func()) {
	cmd := exec.Command("sleep", "600")
	require.NoError(t, cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill() // it may be killed
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	return cmd.Process.Pid, kill
}

// Where docker's daemon and shims were killed with their containers, a pod has the GPU
// without another container of docker's coming by first.
func TestPodAfterDockersContainersWereKilled(t *testing.T) {
	f := newFixture(t)
	pid, kill := sleeper(t)
	f.docker("docker1", pid)
	pod, ctr := newPod("p", named("main", gpuA, 1000, 10)), newContainer("main")
	_, err := f.runtime.create(pod, ctr)
	require.ErrorContains(t, err, "containers that hold it: 1")
	kill()
	_, err = f.runtime.create(pod, ctr)
	require.NoError(t, err)
	require.NoDirExists(t, f.ledger.Dir("docker1"))
}

// An agent that starts releases the claims of containers that are gone, and no others. It keeps a claim that
// can't be read.
func TestAgentStartsBesideDocker(t *testing.T) {
	f := newFixture(t)
	pid, kill := sleeper(t)
	for _, id := range []string{"there", "unreadable"} {
		record, err := orphans.NewRecord("/proc", pid)
		require.NoError(t, err)
		claim := ledger.Claim{ContainerID: id, Owner: ledger.OwnerRuntime, Container: id, Shares: []grant.Share{{UUID: gpuB, MemoryMiB: 1000}}}
		_, err = f.ledger.Claim(context.Background(), claim, f.config.GPUs(), record.Write)
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(f.ledger.Dir("unreadable"), "grant.json"), []byte("{"), 0o600))
	restart := func() {
		f.stop()
		f.start()
	}
	restart()
	require.DirExists(t, f.ledger.Dir("there"))
	require.DirExists(t, f.ledger.Dir("unreadable"))
	kill()
	restart()
	require.NoDirExists(t, f.ledger.Dir("there"))
	require.NoDirExists(t, f.ledger.Dir("unreadable"))
}
