package extender

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// DefaultGroupTimeout is less than kube-scheduler's httpTimeout (30 s in the shipped
// configuration).
const DefaultGroupTimeout = 25 * time.Second

// groups have the pods that wait in bind.
type groups struct {
	mu     sync.Mutex
	byName map[string]*group
}

type group struct {
	pods     map[string]bool
	complete chan struct{}
}

func newGroups() *groups { return &groups{byName: map[string]*group{}} }

// wait returns when minimum pods of the group wait; after the timeout the pod no longer counts.
func (g *groups) wait(ctx context.Context, timeout time.Duration, name, podUID string, minimum int) error {
	if minimum < 2 {
		return nil
	}
	g.mu.Lock()
	this := g.byName[name]
	if this == nil {
		this = &group{pods: map[string]bool{}, complete: make(chan struct{})}
		g.byName[name] = this
	}
	this.pods[podUID] = true
	if len(this.pods) >= minimum {
		// Later pods start a new group, and do not wait once one of these is bound.
		close(this.complete)
		delete(g.byName, name)
	}
	g.mu.Unlock()

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-this.complete:
		return nil
	case <-ctx.Done():
	case <-timer.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-this.complete:
		return nil
	default:
	}
	count := len(this.pods)
	delete(this.pods, podUID)
	if len(this.pods) == 0 && g.byName[name] == this {
		delete(g.byName, name)
	}
	return fmt.Errorf("group %q has %d of the %d pods that it needs: none is bound", name, count, minimum)
}
