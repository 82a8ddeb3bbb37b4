//go:build root

package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/loopback"
)

var (
	lifecycles = flag.Int64("lifecycles", 150, "containers that come and go")
	seed       = flag.Uint64("seed", 0, "of the random choices; 0 takes one")
)

// patience is how long a thing may take that only has to happen.
const patience = 2 * time.Minute

// The workers: of Kubernetes' way, and of docker's, with containers that take longer.
const (
	criWorkers    = 3
	dockerWorkers = 1
)

// soak is one run.
type soak struct {
	*harness.Node
	docker *harness.Dockerd
	t      *testing.T
	seed   uint64
	gpu    string
	// capacityMiB is what of the GPU may be granted.
	capacityMiB int64
	metrics     string

	begun   atomic.Int64
	mu      sync.Mutex
	tally   map[string]int
	samples []sample
}

func TestSoak(t *testing.T) {
	ctx := context.Background()
	s := &soak{t: t, seed: *seed, tally: map[string]int{}, metrics: loopback.FreeAddress(t)}
	if s.seed == 0 {
		s.seed = rand.Uint64()
	}
	t.Logf("-seed=%d chooses the same again", s.seed)
	s.start(ctx)
	requireNothingLeft := s.whatIsThere(ctx)

	// In the first half everything is killed. In the second the agent lives, so that what grows in it is seen,
	// whatever is killed around it. In the third quarter it opens what it needs once.
	s.part(ctx, *lifecycles/2, []string{"killed agent"}, s.killAgent, s.killContainerd, s.killDockerd, s.killRuntimes, s.killPrograms)
	require.False(t, t.Failed())
	require.NoError(t, s.RestartAgent(ctx))
	others := []func(context.Context, *rand.Rand) error{s.killContainerd, s.killDockerd, s.killRuntimes, s.killPrograms, s.look}
	s.part(ctx, *lifecycles*3/4, nil, others...)
	require.False(t, t.Failed())
	before := s.handlesAtRest(ctx, nil)
	seen := []string{"limited", "no GPU", "killed containerd", "killed dockerd", "killed program", "docker limited"}
	s.part(ctx, *lifecycles, seen, others...)
	require.False(t, t.Failed())
	s.requireNoGrowth()
	s.handlesAtRest(ctx, &before)
	requireNothingLeft()
}

// start brings up the node, with docker beside Kubernetes' containerd.
func (s *soak) start(ctx context.Context) {
	var err error
	s.Node, err = harness.NewNode(ctx, harness.NodeOptions{
		GPUs:      []string{"H200"},
		AgentArgs: []string{"--device-split-count=200", "--metrics-address=" + s.metrics},
	})
	s.t.Cleanup(func() {
		if s.t.Failed() && s.Agent != nil {
			s.t.Logf("the agent's log:\n%s", s.Agent.LogTail(40))
		}
		if err := s.Close(context.Background()); err != nil {
			s.t.Errorf("close the node: %v", err)
		}
	})
	require.NoError(s.t, err)
	require.NoError(s.t, s.WriteRuntimeConfig(""))
	s.docker, err = harness.NewDockerd(ctx, s.Machine, harness.DockerdOptions{})
	s.t.Cleanup(func() {
		if s.docker != nil {
			if err := s.docker.Close(context.Background()); err != nil {
				s.t.Errorf("close dockerd: %v", err)
			}
		}
	})
	require.NoError(s.t, err)
	status, err := s.Status(ctx)
	require.NoError(s.t, err)
	s.gpu, s.capacityMiB = status.GPUs[0].UUID, status.GPUs[0].MemoryMiB
}

// part runs workers until so many containers were begun in all and each of these was counted, and breakers meanwhile.
func (s *soak) part(ctx context.Context, until int64, seen []string, breakers ...func(context.Context, *rand.Rand) error) {
	late, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stop := make(chan struct{})
	var breaking, working sync.WaitGroup
	for i, breaker := range breakers {
		r := s.random(uint64(until)*100 + uint64(i))
		breaking.Go(func() {
			for {
				if err := breaker(ctx, r); err != nil {
					s.t.Errorf("%v", err)
					return
				}
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(r.IntN(1500)) * time.Millisecond):
				}
			}
		})
	}
	for i := range uint64(criWorkers + dockerWorkers) {
		work := s.inPods
		if i >= criWorkers {
			work = s.inDocker
		}
		r := s.random(uint64(until)*100 + 50 + i)
		working.Go(func() {
			for n := 0; !s.t.Failed() && (s.begun.Load() < until || len(s.missing(seen)) > 0 && late.Err() == nil); n++ {
				if err := work(ctx, r, fmt.Sprintf("s%d-%d-%d", until, i, n)); err != nil {
					s.t.Errorf("%v", err)
				}
			}
		})
	}
	working.Wait()
	close(stop)
	breaking.Wait()
	s.t.Logf("%v", s.tally)
	require.Empty(s.t, s.missing(seen), "not seen in %d containers", s.begun.Load())
}

func (s *soak) random(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(s.seed, stream)) }

func (s *soak) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally[what]++
}

// missing are those of them that were not counted.
func (s *soak) missing(seen []string) (none []string) {
	for _, what := range seen {
		if !s.counted(what) {
			none = append(none, what)
		}
	}
	return none
}

// counted reports whether it was counted at all.
func (s *soak) counted(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tally[what] > 0
}

// whatIsThere returns a check that all is again as it is now.
func (s *soak) whatIsThere(ctx context.Context) func() {
	here := func() map[string][]string {
		mounts, err := harness.MountsBelow(s.Dir)
		require.NoError(s.t, err)
		// A dockerd that is killed as it makes a container forgets its network namespace, gpuslice or not.
		// The turn files' file system stays.
		mounts = slices.DeleteFunc(mounts, func(at string) bool {
			return strings.Contains(at, "/exec/netns/") || strings.HasSuffix(at, "/turns")
		})
		library, err := os.ReadDir(s.LibraryDir())
		require.NoError(s.t, err)
		groups, err := busyGroups(s.Dir)
		require.NoError(s.t, err)
		// A dockerd that is killed while it makes a container leaves its own mount of an empty layer, and never removes it.
		mounts = slices.DeleteFunc(mounts, func(m string) bool {
			return strings.Contains(m, "/overlay2/") && strings.HasSuffix(m, "-init/merged")
		})
		there := map[string][]string{"mounts": mounts, "busy control groups": groups}
		for _, file := range library {
			there["library"] = append(there["library"], file.Name())
		}
		return there
	}
	before := here()
	return func() {
		s.removeAll(ctx)
		// The next container or reconciliation removes what processes that were killed left: the next
		// container of docker removes docker's claims, one reconciliation all others.
		require.NoError(s.t, s.RestartAgent(ctx))
		s.requireEmpty(ctx)
		require.Equal(s.t, before, here())
	}
}

func (s *soak) removeAll(ctx context.Context) {
	require.NoError(s.t, harness.Until(ctx, patience, s.RemoveAllPods))
	require.NoError(s.t, harness.Until(ctx, patience, s.docker.RemoveAll))
	require.NoError(s.t, s.deleteUnstarted(ctx))
}

// requireEmpty waits until the ledger is empty.
func (s *soak) requireEmpty(ctx context.Context) {
	var left error
	err := harness.Until(ctx, patience, func(ctx context.Context) error {
		if err := s.empty(ctx); ctx.Err() == nil {
			left = err
		}
		return left
	})
	require.NoError(s.t, err, "%v", left)
}

// deleteUnstarted removes, as `gpuslice doctor` describes it, the containers that docker has lost: its daemon
// was killed when they were made and not started yet. They exist with or without gpuslice, and keep their
// shares while they exist.
func (s *soak) deleteUnstarted(ctx context.Context) error {
	dirs, err := s.StateDirs()
	if err != nil {
		return err
	}
	for _, id := range dirs {
		record, err := orphans.Read(filepath.Join(s.StateDir(), "containers", id))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, root := range record.Roots {
			if _, err := os.Stat(filepath.Join(root, id, "exec.fifo")); err != nil {
				continue
			}
			if _, err := harness.Run(ctx, nil, record.Runtime, "--root", root, "delete", "--force", id); err != nil {
				return err
			}
			s.count("forgotten by docker")
			s.t.Logf("forgotten by docker: %s", id)
		}
	}
	return nil
}

// empty returns an error with what is not empty in the node's ledger. A shim may be left that its containerd
// (1.6) does not list any more: its runtime and its daemon were killed in one creation.
func (s *soak) empty(ctx context.Context) error {
	status, err := s.Status(ctx)
	if err != nil {
		return err
	}
	dirs, err := s.StateDirs()
	if err != nil {
		return err
	}
	runtimes, err := s.docker.Runtimes()
	if err != nil {
		return err
	}
	if gpu := status.GPUs[0]; len(status.Containers)+len(dirs)+len(runtimes)+gpu.Containers+gpu.GrantedCores+int(gpu.GrantedMemoryMiB) > 0 {
		return fmt.Errorf("left: containers %v, directories %v, processes of runtimes %v, GPU %+v", status.Containers, dirs, runtimes, gpu)
	}
	return nil
}
