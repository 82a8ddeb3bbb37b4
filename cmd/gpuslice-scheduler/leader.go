package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
)

// leader checks whether this kube-scheduler is the leader. kube-scheduler sets a metric before an
// election starts; without it, there is none.
type leader struct {
	gatherer metrics.Gatherer
	now      func() time.Time

	mu    sync.Mutex
	first time.Time // first call
}

// electionStart is when an election has certainly started after the first call.
const electionStart = 10 * time.Second

const electionMetric = "leader_election_master_status" // 1 for the leader

var errNotLeader = errors.New("another replica is the leader")

func (l *leader) check() error {
	families, err := l.gatherer.Gather()
	if err != nil && len(families) == 0 {
		return fmt.Errorf("read the leader election metric: %w", err)
	}
	election := false
	for _, family := range families {
		if family.GetName() != electionMetric {
			continue
		}
		for _, m := range family.GetMetric() {
			election = true
			if m.GetGauge().GetValue() == 1 {
				return nil
			}
		}
	}
	if election {
		return errNotLeader
	}
	now := time.Now
	if l.now != nil {
		now = l.now
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first.IsZero() {
		l.first = now()
	}
	if now().Sub(l.first) < electionStart {
		return errors.New("the leader is not known yet")
	}
	return nil
}
