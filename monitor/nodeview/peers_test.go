package nodeview_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
)

// The audit compares with the weights that the limiters have.
func TestPeers(t *testing.T) {
	const gpu = "GPU-00000001-5151-4000-8000-000000000001"
	entry := func(id string, cores int, high bool, policy limiter.Policy) ledger.Entry {
		c := ledger.Claim{ContainerID: id, TurnID: 7, HighPriority: high, CorePolicy: policy, Shares: []grant.Share{{UUID: gpu, CorePercent: cores}}}
		return ledger.Entry{Claim: c, State: ledger.StateActive}
	}
	s := &ledger.Snapshot{Entries: []ledger.Entry{
		entry("a", 30, true, limiter.PolicyDefault), entry("b", 0, false, limiter.PolicyDefault), entry("c", 0, true, limiter.PolicyDefault),
		entry("d", 20, true, limiter.PolicyDisable), entry("no turn file", 10, true, limiter.PolicyDefault),
	}}
	turns := map[string]map[string]limiter.Turn{gpu: {"a": {Lag: 5}, "b": {}, "c": {}, "d": {}}}
	assert.Equal(t, map[string]map[string]feedback.Peer{gpu: {
		"a": {Turn: limiter.Turn{Lag: 5}, Weight: 30}, "b": {Weight: 20, Low: true}, "c": {Weight: 20}, "d": {Weight: 20, Free: true},
	}}, nodeview.Peers(s, turns, 1))
	assert.Equal(t, 25.0, nodeview.Peers(s, turns, 25)[gpu]["b"].Weight, "the floor")
}
