package nriplugin

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// answerMargin is the time between an answer and the runtime's deadline, when the runtime creates the
// container without an adjustment.
const answerMargin = 150 * time.Millisecond

// innerDeadline returns the time of the latest answer: the margin before the runtime's deadline, or half of
// the remaining time if that is short.
func innerDeadline(now, runtimeDeadline time.Time) time.Time {
	left := runtimeDeadline.Sub(now)
	return now.Add(max(left-answerMargin, left/2))
}

// States of a handler: either its result is delivered, or the deadline comes first.
const (
	running int32 = iota
	delivered
	abandoned
)

// beforeDeadline runs work and returns its result, or an error at the inner deadline. Work that ends later
// removes its claim: the runtime's RemoveContainer can come before the claim.
func (p *Plugin) beforeDeadline(ctx context.Context, id string, work func(context.Context) (*api.ContainerAdjustment, error)) (*api.ContainerAdjustment, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return work(ctx) // not a request of a runtime
	}
	inner, cancel := context.WithDeadline(ctx, innerDeadline(time.Now(), deadline))

	type outcome struct {
		adjust *api.ContainerAdjustment
		err    error
	}
	var (
		state atomic.Int32
		done  = make(chan outcome, 1)
	)
	p.handlers.begin()
	go func() {
		defer p.handlers.end()
		defer cancel()
		defer p.health.begin(id)()
		adjust, err := work(inner)
		if state.CompareAndSwap(running, delivered) {
			done <- outcome{adjust, err}
			return
		}
		if err == nil {
			p.intents.forget(id)
			p.endClaim(context.Background(), id, remove)
		}
	}()

	select {
	case o := <-done:
		return o.adjust, o.err
	case <-inner.Done():
		if !state.CompareAndSwap(running, abandoned) {
			o := <-done // both at the same time: the work was faster
			return o.adjust, o.err
		}
		// Not wrapped: the runtime must not take it for a deadline error of its own.
		return nil, &reasoned{reasonLate, fmt.Errorf("gpuslice did not decide within the runtime's NRI timeout and refuses container %s; the kubelet retries (%v)", id, inner.Err())}
	}
}

// handlers counts handlers that run. A sync.WaitGroup must not be increased from zero while wait waits.
type handlers struct {
	mu    sync.Mutex
	ended sync.Cond
	count int
}

func (h *handlers) add(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count += n
	h.ended.Broadcast()
}

func (h *handlers) begin() { h.add(1) }
func (h *handlers) end()   { h.add(-1) }

func (h *handlers) wait() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.count > 0 {
		h.ended.Wait()
	}
}
