//go:build root

package docker_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// killRounds is how often a process is killed while a container is made or removed.
const killRounds = 12

// killsAtRandom: the wrapper, runc, the shim, containerd and dockerd are killed while
// containers are made and removed. Never is a container there without its limits, and in
// the end everything has been given back.
func killsAtRandom(t *testing.T, d docker) {
	ctx := context.Background()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	victims := []struct {
		name string
		pids func() ([]int, error)
	}{{"runtime", d.Runtimes}, {"runtime", d.Runtimes}, {"shim", d.Shims}, {"containerd", d.Containerd}}
	killed := map[string]int{}
	for round := range killRounds {
		done, removes := make(chan struct{}), random.IntN(2) == 0
		go func() {
			defer close(done)
			args := append([]string{"--detach"}, share(2000, 5)...)
			out, err := d.Docker(ctx, sliced(append(args, harness.WorkloadImage)...)...)
			if id := strings.TrimSpace(out); err == nil && removes {
				_, _ = d.Docker(ctx, "rm", "--force", id) // it may be killed on the way
			}
		}()
		victim := victims[round%len(victims)]
		if round == killRounds/2 {
			time.Sleep(100 * time.Millisecond) // into the middle of it; any moment will do
			d.Kill()
			killed["dockerd"]++
			<-done
			require.NoError(t, d.Start(ctx))
			continue
		}
		killed[victim.name] += killOne(t, victim.pids, random, done)
		<-done
		requireLimited(t, d)
	}
	t.Logf("killed: %v", killed)
	require.NotZero(t, killed["runtime"]+killed["shim"], "no process was killed")
	// After dockerd has its containerd again, everything can be removed, and the next container finds the
	// whole GPU free.
	require.NoError(t, harness.Until(ctx, 3*time.Minute, func(ctx context.Context) error {
		if err := d.RemoveAll(ctx); err != nil {
			return err
		}
		args := append([]string{"--rm"}, share(143000, 100)...)
		_, err := d.Docker(ctx, sliced(append(args, harness.WorkloadImage, "/bin/true")...)...)
		return err
	}))
}

// killOne kills one of the processes, as soon as there is one and a moment has passed.
func killOne(t *testing.T, find func() ([]int, error), random *rand.Rand, done <-chan struct{}) int {
	moment := time.Duration(random.IntN(60)) * time.Millisecond
	for {
		pids, err := find()
		require.NoError(t, err)
		if len(pids) > 0 {
			time.Sleep(moment)
			if pids, err = find(); len(pids) > 0 {
				require.NoError(t, err)
				_ = syscall.Kill(pids[random.IntN(len(pids))], syscall.SIGKILL) // it may have ended
				return 1
			}
		}
		select {
		case <-done:
			return 0
		default:
		}
	}
}

// requireLimited checks that each container with a GPU has its limits, and that the reservations do not
// exceed the GPU.
func requireLimited(t *testing.T, d docker) {
	s, err := d.m.Status(context.Background())
	require.NoError(t, err)
	require.LessOrEqual(t, s.GPUs[0].GrantedMemoryMiB, s.GPUs[0].MemoryMiB)
	ids, err := d.Containers(context.Background())
	require.NoError(t, err)
	for _, id := range ids {
		pid, err := d.Docker(context.Background(), "inspect", "--format", "{{.State.Pid}}", id)
		if n, _ := strconv.Atoi(strings.TrimSpace(pid)); err != nil || n == 0 {
			continue // it doesn't run
		}
		spec, err := d.Spec(id)
		if err != nil {
			continue // it has just ended
		}
		limited, err := harness.LimitedOrNone(spec, d.m.StateDir())
		require.NoError(t, err)
		require.True(t, limited, "the wrapper has edited it")
	}
}
