package engine

import (
	"github.com/gpuslice/gpuslice/scheduler"
)

// Verdict is what the engine says of a pod on a node.
type Verdict struct {
	// Fits says that there is room.
	Fits bool
	// Score is how good the node is where the pod fits: 0 to choose.MaxNodeScore.
	Score int64

	name     string   // the node's
	node     *node    // as it was judged; nil: not known
	outcome  *outcome // not to be changed
	err      error    // why it is refused whatever is free: quotas, or a policy that there is not
	request  *podRequest
	smallest bool // it fits with the smallest GPUs, which the policy would not have chosen
}

// subject is what is judged.
type podRequest struct {
	pod *scheduler.Pod
	*compiled
	positions []int // of ask.needs in the pod's containers
}

// verdict is by what the fit says, and by the namespace's quotas.
func (s *podRequest) verdict(name string, n *node, o *outcome, l *quotaLimits) Verdict {
	v := Verdict{name: name, node: n, outcome: o, request: s}
	if l != nil {
		v.applyQuotas(l)
	}
	v.Fits, v.Score = v.outcome.fits, int64(v.outcome.score)
	return v
}

// limit has the verdict be by the namespace's quotas, too. Where the policy's GPUs are too
// large for them, smaller ones may not be.
func (v *Verdict) applyQuotas(l *quotaLimits) {
	err := l.check(v.node, v.outcome)
	if err == nil {
		return
	}
	if v.outcome.fits && v.request.relative && v.node.gpus.mixed {
		f := v.request.fitter()
		defer f.release()
		if small := f.fitSmallest(v.node); small.fits && l.check(v.node, &small) == nil {
			v.outcome, v.smallest = &small, true
			return
		}
	}
	if refused, is := v.outcome.withQuotaExceeded(v.node); is {
		v.outcome, v.err = refused, err
	}
}

// Reasons is how many GPUs failed by which reason, for the container that could not be
// served; all are zero where the pod fits.
func (v *Verdict) Reasons() Counts { return v.outcome.counts }

// Reason is the reason that most GPUs have: for metrics, and for kube-scheduler's sum
// over nodes (Code.Brief). OK where the pod fits.
func (v *Verdict) Reason() Code {
	if v.Fits {
		return OK
	}
	return v.outcome.counts.Main()
}
