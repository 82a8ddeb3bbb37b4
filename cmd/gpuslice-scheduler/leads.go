package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
)

// leading says whether this replica's kube-scheduler leads. Of its election kube-scheduler
// tells its plugins nothing, but it has a metric of it, from before the election begins:
// where there is none, there is no election.
type leading struct {
	gatherer metrics.Gatherer
	now      func() time.Time

	mu    sync.Mutex
	asked time.Time // first
}

// electionBegins is how long after the first question an election would have begun for
// sure: nobody asks before the informers are synced, and nothing comes between that and the election.
const electionBegins = 10 * time.Second

// electionMetric is client-go's, 1 while it leads.
const electionMetric = "leader_election_master_status"

var errFollows = errors.New("another replica leads")

func (l *leading) check() error {
	families, err := l.gatherer.Gather()
	if err != nil && len(families) == 0 {
		return fmt.Errorf("find out which replica leads: %w", err)
	}
	elected := false
	for _, family := range families {
		if family.GetName() != electionMetric {
			continue
		}
		for _, m := range family.GetMetric() {
			elected = true
			if m.GetGauge().GetValue() == 1 {
				return nil
			}
		}
	}
	if elected {
		return errFollows
	}
	now := time.Now
	if l.now != nil {
		now = l.now
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked.IsZero() {
		l.asked = now()
	}
	if now().Sub(l.asked) < electionBegins {
		return errors.New("it is not known yet which replica leads")
	}
	return nil
}
