package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
)

// TestConcurrentCallers has eight callers place pods on a cluster that fits them exactly, each
// as a component does: evaluate, take the best node, reserve, and confirm.
func TestConcurrentCallers(t *testing.T) {
	const nodes, gpus, callers = 10, 8, 8
	for _, tc := range []struct {
		shape  string
		perGPU int
	}{{"1/8000/10", 10}, {"1/40000/0", 2}, {"1/-100/100", 1}} {
		t.Run(tc.shape, func(t *testing.T) {
			e := newEngine(t, Options{})
			for i := range nodes {
				e.SetNode(nodeOf(nodeName(i), h100s(i, gpus)...))
			}
			capacity := nodes * gpus * tc.perGPU
			pods := make(chan *scheduler.Pod, capacity+capacity/10)
			for i := range cap(pods) {
				pods <- podOf(fmt.Sprintf("uid-%05d", i), tc.shape)
			}
			close(pods)
			var placed, refused atomic.Int64
			var wg sync.WaitGroup
			for caller := range callers {
				wg.Go(func() {
					for p := range pods {
						if placeAnywhere(t, e, p, fmt.Sprint("caller", caller)) {
							placed.Add(1)
						} else {
							refused.Add(1)
						}
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, capacity, placed.Load())
			require.EqualValues(t, capacity/10, refused.Load())
			for i := range nodes {
				for gpu := range gpus {
					require.Equal(t, tc.perGPU, used(e, nodeName(i), gpu).Replicas)
				}
			}
			require.Empty(t, e.Problems())
		})
	}
}

// placeAnywhere places the pod on the best node that will have it, as long as there is one.
func placeAnywhere(t *testing.T, e *Engine, p *scheduler.Pod, owner string) bool {
	r, err := e.Request(p)
	if err != nil {
		t.Error(err)
		return false
	}
	for {
		v := e.Evaluate(e.Snapshot(), p, r)
		best, score := "", int64(-1)
		for _, name := range v.Nodes() {
			if verdict := v.Verdict(name); verdict.Fits && verdict.Score > score {
				best, score = name, verdict.Score
			}
		}
		if best == "" {
			return false
		}
		placement, err := e.Reserve(p, r, best, owner)
		if errors.Is(err, ErrNoFit) {
			continue // another caller was faster
		}
		if err != nil {
			t.Error(err)
			return false
		}
		e.SetPod(bindTo(given(t, p, placement), best))
		return true
	}
}

// TestConcurrentEvents has all components and events at once: it is for the race detector, and
// for what must be true at the end.
func TestConcurrentEvents(t *testing.T) {
	e := newEngine(t, Options{Signatures: 2})
	for i := range 20 {
		e.SetNode(nodeOf(nodeName(i), h100s(i, 2)...))
	}
	before := dump(e)
	var wg sync.WaitGroup
	for caller := range 8 {
		wg.Go(func() {
			for i := range 100 {
				p := podOf(fmt.Sprintf("uid-%d-%d", caller, i), []string{"1/8000/10", "2/20000/0", "1/-50/50"}[i%3])
				r, err := e.Request(p)
				if err != nil {
					t.Error(err)
					return
				}
				s := e.Snapshot()
				v := e.Evaluate(s, p, r)
				node := nodeName((caller + i) % 20)
				verdict := v.Verdict(node)
				_ = verdict.Text()
				other := v.On(s.Overlay().Without(node, p.UID), node)
				if other.Fits != verdict.Fits {
					t.Errorf("%s has two verdicts on one snapshot", node)
				}
				placement, err := e.Reserve(p, r, node, "test")
				switch {
				case err != nil:
				case i%2 == 0:
					e.Unreserve(p.UID, "test")
				default:
					e.SetPod(bindTo(given(t, p, placement), node))
				}
				if i%10 == 0 {
					e.SetNode(nodeOf(nodeName(caller), h100s(caller, 1+i/10%2)...))
					_, _ = e.Stats(), e.State("")
				}
				e.DeletePod(p.UID)
			}
		})
	}
	wg.Wait()
	for i := range 20 {
		e.SetNode(nodeOf(nodeName(i), h100s(i, 2)...))
	}
	require.Equal(t, before, dump(e))
	require.Empty(t, e.pods)
}
