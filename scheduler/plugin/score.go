package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, object *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	c.preferences = preferences(object, nodes)
	return nil
}

func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c := cycleOf(state)
	if c == nil {
		return 0, missingPreFilter("Score")
	}
	return c.verdict(node.Node().Name).Score, nil
}

func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore implements fwk.ScoreExtensions: the best candidate gets all, the worst 0, because small differences
// would be rounded away. All is 100, which goes before kube-scheduler's plugins, or less if the pod or the nodes have
// preferences. Only the first of equal nodes gets all, because kube-scheduler chooses at random among equal totals.
func (p *Plugin) NormalizeScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	if len(scores) == 0 {
		return nil
	}
	all := fwk.MaxScore
	if c := cycleOf(state); c != nil && c.preferences {
		all = int64(p.args.ScoreWithPreferences)
	}
	first, worst := 0, scores[0].Score
	for i, s := range scores {
		worst = min(worst, s.Score)
		if f := &scores[first]; s.Score > f.Score || s.Score == f.Score && s.Name < f.Name {
			first = i
		}
	}
	best := scores[first].Score
	for i := range scores {
		switch s := &scores[i]; {
		case i == first:
			s.Score = all
		case s.Score == best:
			s.Score = all - 1
		default:
			s.Score = (s.Score - worst) * all / (best - worst)
		}
	}
	return nil
}
