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

// Score implements fwk.ScorePlugin. What it tells is the engine's score, which
// NormalizeScore makes one of kube-scheduler's of.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c := cycleOf(state)
	if c == nil {
		return 0, lost("Score")
	}
	return c.verdict(node.Node().Name).Score, nil
}

// ScoreExtensions implements fwk.ScorePlugin.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore implements fwk.ScoreExtensions: the best of the candidates has 100, the
// worst 0. A small pod changes a node's score by less than a hundredth, and the policy's
// order would be lost in the rounding.
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
