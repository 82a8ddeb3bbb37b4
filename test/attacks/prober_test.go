//go:build attacks

package attacks

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpuslice/gpuslice/test/harness"
)

// answerWithin is how long an attack may keep the agent, or the node, from an answer.
const answerWithin = 5 * time.Second

// prober sends a node the requests of a well-behaved user, again and again.
type prober struct {
	within time.Duration
	// stop reports requests that were not answered.
	stop func(*testing.T)

	mu       sync.Mutex
	longest  map[string]time.Duration
	failures []string
	asked    int
}

// probe sends requests until it is stopped, or the test ends: for the agent's health, for the list of grants, and for a share of the GPU,
// which it gives back. Each request has a deadline, and each must have been answered.
func probe(t *testing.T, n *harness.Node, uuid string, within time.Duration) *prober {
	t.Helper()
	p := &prober{within: within, longest: map[string]time.Duration{}}
	ctx, cancel := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		for ctx.Err() == nil {
			p.ask(ctx, "healthz", func(ctx context.Context) error { return n.Health(ctx, "/healthz") })
			p.ask(ctx, "status", func(ctx context.Context) error { _, err := n.Status(ctx); return err })
			pause(ctx, 200*time.Millisecond)
		}
	})
	waiting.Go(func() {
		s, err := n.RunPod(ctx, harness.Pod{Name: "prober", Annotations: granted(uuid, 100, 1)})
		if err != nil {
			p.fail("grant: run its pod", err)
			return
		}
		for i := uint32(0); ctx.Err() == nil; i++ {
			id := ""
			p.ask(ctx, "grant", func(ctx context.Context) (err error) {
				id, err = s.Create(ctx, harness.Container{Name: "main", Attempt: i})
				return err
			})
			if id != "" { // also when it is stopped meanwhile
				if err := n.RemoveContainer(context.Background(), id); err != nil {
					p.fail("grant: remove it", err)
				}
			}
			pause(ctx, 500*time.Millisecond)
		}
		if err := s.Remove(context.Background()); err != nil {
			p.fail("grant: remove its pod", err)
		}
	})
	var once sync.Once
	p.stop = func(t *testing.T) {
		once.Do(func() {
			cancel()
			waiting.Wait()
			t.Logf("the agent was asked %d times; longest answers: %v", p.asked, p.longest)
			assert.Empty(t, p.failures, "requests that were not answered")
			assert.NotZero(t, p.longest["grant"])
		})
	}
	t.Cleanup(func() { p.stop(t) })
	return p
}

func pause(ctx context.Context, long time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(long):
	}
}

func (p *prober) ask(ctx context.Context, what string, ask func(context.Context) error) {
	deadline, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	began := time.Now()
	err := ask(deadline)
	if ctx.Err() != nil {
		return // it is stopped
	}
	p.mu.Lock()
	p.asked++
	p.longest[what] = max(p.longest[what], time.Since(began))
	p.mu.Unlock()
	if err != nil {
		p.fail(fmt.Sprintf("%s, with a deadline of %v", what, p.within), err)
	}
}

func (p *prober) fail(what string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, time.Now().Format("15:04:05.0 ")+what+": "+err.Error())
}

// most is the longest answer to a question so far.
func (p *prober) most(what string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.longest[what]
}
