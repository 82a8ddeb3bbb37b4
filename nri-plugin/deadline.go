package nriplugin

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// answerMargin is how long before the runtime's deadline an answer is given.
// Waiting for the deadline itself loses the race: the runtime gives up first,
// cuts the plugin off, and creates the container without an adjustment.
const answerMargin = 150 * time.Millisecond

// innerDeadline returns the time by which an answer must be on its way: the
// margin before the runtime's deadline, or half of what is left where a
// runtime is configured with less than two margins.
func innerDeadline(now, runtimeDeadline time.Time) time.Time {
	left := runtimeDeadline.Sub(now)
	return now.Add(max(left-answerMargin, left/2))
}

// The life of one piece of work: who comes first, its end or the deadline.
const (
	pending int32 = iota
	delivered
	abandoned
)

// beforeDeadline runs work and returns its outcome, or an error when the inner
// deadline comes first. Work that ends after that finds itself abandoned, and
// what it claimed is given back: nobody will ever send a Remove for it that
// is sure to come after the claim.
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
	p.work.begin()
	go func() {
		defer p.work.end()
		defer cancel()
		defer p.health.begin(id)()
		adjust, err := work(inner)
		if state.CompareAndSwap(pending, delivered) {
			done <- outcome{adjust, err}
			return
		}
		if err == nil {
			p.undo(id)
		}
	}()

	select {
	case o := <-done:
		return o.adjust, o.err
	case <-inner.Done():
		if !state.CompareAndSwap(pending, abandoned) {
			o := <-done // both at once: the work was faster
			return o.adjust, o.err
		}
		// Not wrapped: a deadline error must not look to the runtime like one of its own.
		return nil, &reasoned{reasonLate, fmt.Errorf("gpuslice did not decide within the runtime's NRI timeout and refuses container %s; it will be tried again (%v)", id, inner.Err())}
	}
}

// undo gives back a claim that no container came of.
func (p *Plugin) undo(id string) {
	p.intents.forget(id)
	p.giveBack(context.Background(), id, remove)
}
