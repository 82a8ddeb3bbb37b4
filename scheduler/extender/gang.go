package extender

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// DefaultGangTimeout is how long a pod's bind waits for the others of its group. It has to
// be less than kube-scheduler's httpTimeout (30 s in the configuration that is shipped).
const DefaultGangTimeout = 25 * time.Second

// gangs are the groups of which a part has come to be bound.
type gangs struct {
	mu     sync.Mutex
	groups map[string]*gang
}

type gang struct {
	members map[string]bool
	full    chan struct{}
}

func newGangs() *gangs { return &gangs{groups: map[string]*gang{}} }

// wait returns once so many pods of the group wait as are needed; an error if that takes
// too long, and then the pod counts no more.
func (g *gangs) wait(ctx context.Context, timeout time.Duration, group, podUID string, least int) error {
	if least < 2 {
		return nil
	}
	g.mu.Lock()
	all := g.groups[group]
	if all == nil {
		all = &gang{members: map[string]bool{}, full: make(chan struct{})}
		g.groups[group] = all
	}
	all.members[podUID] = true
	if len(all.members) >= least {
		// Those who come later find a new group, and wait for nobody once one of these is
		// bound.
		close(all.full)
		delete(g.groups, group)
	}
	g.mu.Unlock()

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-all.full:
		return nil
	case <-ctx.Done():
	case <-timer.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-all.full: // in the last moment
		return nil
	default:
	}
	there := len(all.members)
	delete(all.members, podUID)
	if len(all.members) == 0 && g.groups[group] == all {
		delete(g.groups, group)
	}
	return fmt.Errorf("the pod's group %q has %d of the %d pods that it needs together: none is bound", group, there, least)
}
