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

	name      string // the node's
	on        *node  // as it was judged; nil: not known
	ask       *ask
	pod       *scheduler.Pod
	positions []int // of ask.needs in the pod's containers
	outcome   outcome
	refusal   error // why it is refused whatever is free: quotas, or a policy that there is not
}

// judge makes it the verdict by what the fit says, and by the namespace's quotas.
func (v *Verdict) judge(o outcome, l *limits) {
	if err := l.check(v.on, &o); err != nil && o.refuse(v.on) {
		v.refusal = err
	}
	v.outcome, v.Fits, v.Score = o, o.fits, int64(o.score)
}

// Reasons is how many cards failed by which reason, for the container that could not be
// served; all are zero where the pod fits.
func (v *Verdict) Reasons() Counts { return v.outcome.counts }

// Reason is the reason that most cards have: for metrics, and for kube-scheduler's sum
// over nodes (Code.Brief). OK where the pod fits.
func (v *Verdict) Reason() Code {
	if v.Fits {
		return OK
	}
	return v.outcome.counts.Main()
}
