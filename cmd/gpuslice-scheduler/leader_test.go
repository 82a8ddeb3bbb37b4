package main

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// gathered is a Gatherer of one registry.
type gathered struct{ *prometheus.Registry }

func TestLeader(t *testing.T) {
	registry := prometheus.NewRegistry()
	now := time.Unix(1000, 0)
	l := &leader{gatherer: gathered{registry}, now: func() time.Time { return now }}
	require.ErrorContains(t, l.check(), "not known yet", "an election may start")
	now = now.Add(electionStart)
	require.NoError(t, l.check(), "no election")

	status := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: electionMetric}, []string{"name"})
	registry.MustRegister(status)
	status.WithLabelValues("gpuslice-scheduler").Set(0)
	require.ErrorIs(t, l.check(), errNotLeader)
	status.WithLabelValues("gpuslice-scheduler").Set(1)
	require.NoError(t, l.check())
}
