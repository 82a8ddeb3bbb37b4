//go:build e2e && soak

package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

var (
	soakPods = flag.Int64("soak", 60, "pods that come and go in TestSoak")
	soakSeed = flag.Uint64("soak-seed", 0, "of the random choices; 0 takes one")
)

// soakWorkers is the number of goroutines that make Deployments and Jobs at one time: together they request
// less than the node has, so that each pod has room.
const soakWorkers = 3

// soaked is one run.
type soaked struct {
	*space
	seed  uint64
	begun atomic.Int64
	grown map[string]*growth
}

// Whatever is killed while pods come and go: each of them comes to what it was made for, at
// no time is more granted of a GPU than it has (reservations), and in the end nothing is left.
// In the first half everything is killed. In the second the agent and the scheduler live, so
// that what grows in them is seen.
func TestSoak(t *testing.T) {
	ctx := context.Background()
	s := &soaked{space: newSpace(t), seed: *soakSeed, grown: map[string]*growth{"agent": {}, "scheduler": {}}}
	if s.seed == 0 {
		s.seed = rand.Uint64()
	}
	t.Logf("-soak-seed=%d chooses the same again", s.seed)
	before := s.left(ctx)

	others := slices.DeleteFunc(slices.Clone(restarts), func(r restart) bool { return r.name == "agent" || r.name == "agent, killed" })
	others = append(others, restart{"controller-manager", func(ctx context.Context) error {
		cluster.ControllerManager.Kill()
		return cluster.StartControllerManager(ctx)
	}})
	// The kubelet fails for good what it admits while it has no device plugin; a Job and a
	// Deployment have another pod then. In the second half only a restart of the kubelet does so.
	s.half(ctx, *soakPods/2, slices.Concat(restarts, schedulerRestarts, others[len(others)-1:]), nil)
	followed.tolerate(false)
	require.False(t, t.Failed())
	s.half(ctx, *soakPods, others, s.look)
	require.False(t, t.Failed())

	require.NoError(t, harness.Until(ctx, patience, unused))
	var after map[string]int
	err := harness.Until(ctx, patience, func(ctx context.Context) error {
		if after = s.left(ctx); fmt.Sprint(after) != fmt.Sprint(before) {
			return fmt.Errorf("%v, and %v before", after, before)
		}
		return nil
	})
	require.NoError(t, err, "what is left")
	for name, g := range s.grown {
		g.requireNone(t, name)
	}
}

// half has workers until so many pods were begun in all, and meanwhile kills one part after
// another, with moments of peace, in which look may look.
func (s *soaked) half(ctx context.Context, until int64, breakers []restart, look func(context.Context) error) {
	stop := make(chan struct{})
	var breaking, working sync.WaitGroup
	breaking.Go(func() {
		r := rand.New(rand.NewPCG(s.seed, uint64(until)))
		for {
			b := breakers[r.IntN(len(breakers))]
			s.t.Logf("%d pods; kill: %s", s.begun.Load(), b.name)
			followed.tolerate(look == nil)
			err := b.do(ctx)
			followed.tolerate(look == nil) // some of them end it
			if err == nil {
				err = cluster.WaitNode(ctx)
			}
			if err == nil && look != nil {
				err = harness.Until(ctx, patience, look)
			}
			if err != nil {
				s.t.Errorf("%s: %v", b.name, err)
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(1+r.IntN(4)) * time.Second):
			}
		}
	})
	for i := range uint64(soakWorkers) {
		r := rand.New(rand.NewPCG(s.seed, uint64(until)*100+i))
		working.Go(func() {
			for n := 0; !s.t.Failed() && s.begun.Load() < until; n++ {
				s.live(ctx, r, fmt.Sprintf("s%d-%d-%d", until, i, n))
			}
		})
	}
	working.Wait()
	close(stop)
	breaking.Wait()
}

// kinds are shares of every kind; each fits into what the workers leave one another.
var kinds = []func(name string) *corev1.Pod{
	func(name string) *corev1.Pod { return pod(name, container("main", nil)) },
	func(name string) *corev1.Pod { return pod(name, container("main", gpu(9000, 20))) },
	func(name string) *corev1.Pod { return pod(name, container("main", gpu(60000, 0))) },
	func(name string) *corev1.Pod {
		return pod(name, container("main", resources{"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "25", "nvidia.com/gpucores": "10"}))
	},
	func(name string) *corev1.Pod {
		return pod(name, container("main", resources{"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4000"}))
	},
	func(name string) *corev1.Pod {
		return pod(name, container("a", gpu(3000, 10)), container("none", nil), container("b", gpu(5000, 10)))
	},
	func(name string) *corev1.Pod {
		p := pod(name, container("main", gpu(2000, 5)))
		first := container("first", gpu(7000, 30))
		first.Command = []string{workload("meminfo")}
		p.Spec.InitContainers = []corev1.Container{first}
		return p
	},
}

// live has a Deployment or a Job live to its end: an error of an API server that is unreachable is
// no matter, and one that lasts is.
func (s *soaked) live(ctx context.Context, r *rand.Rand, name string) {
	p := kinds[r.IntN(len(kinds))](name)
	replicas := int32(1 + r.IntN(3))
	s.begun.Add(int64(replicas))
	job := r.IntN(2) == 0
	do := func(what string, f func(context.Context) error) bool {
		var last error
		err := harness.Until(ctx, patience, func(ctx context.Context) error {
			if err := f(ctx); ctx.Err() == nil {
				last = err
			}
			return last
		})
		if err != nil {
			s.t.Errorf("%s: %s: %v\n%s", name, what, last, s.story(ctx, name))
		}
		return err == nil
	}
	make, done, end := s.deployment(p, replicas)
	if job {
		make, done, end = s.job(p, replicas)
	}
	if !do("make", make) || !do("come to what it is for", done) {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(r.IntN(3000)) * time.Millisecond):
	}
	_ = do("delete", end) && do("go", func(ctx context.Context) error { return s.gone(ctx, name) })
}
