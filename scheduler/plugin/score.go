package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// PreScore implements fwk.PreScorePlugin.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if cycleOf(state) == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score implements fwk.ScorePlugin with the engine's score; NormalizeScore scales it.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c := cycleOf(state)
	if c == nil {
		return 0, missingPreFilter("Score")
	}
	return c.verdict(node.Node().Name).Score, nil
}

// ScoreExtensions implements fwk.ScorePlugin.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore implements fwk.ScoreExtensions: the best candidate gets 100, the worst 0. Without
// it, differences of less than a hundredth would be rounded away.
func (p *Plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	if len(scores) == 0 {
		return nil
	}
	worst, best := scores[0].Score, scores[0].Score
	for _, s := range scores {
		worst, best = min(worst, s.Score), max(best, s.Score)
	}
	for i := range scores {
		if best == worst {
			scores[i].Score = fwk.MaxScore
			continue
		}
		scores[i].Score = (scores[i].Score - worst) * fwk.MaxScore / (best - worst)
	}
	return nil
}
