package engine

import (
	"github.com/gpuslice/gpuslice/scheduler"
)

// Verdict is the result for a pod on a node.
type Verdict struct {
	Fits bool
	// Score is from 0 to choose.MaxNodeScore.
	Score int64

	name     string
	node     *node    // as evaluated; nil: unknown
	outcome  *outcome // read-only
	err      error    // a quota or an invalid policy
	request  *podRequest
	smallest bool // fits only with the smallest GPUs
}

type podRequest struct {
	pod *scheduler.Pod
	*compiled
	positions []int // of compiled.containers in the pod
}

func (s *podRequest) verdict(name string, n *node, o *outcome, l *quotaLimits) Verdict {
	v := Verdict{name: name, node: n, outcome: o, request: s}
	if l != nil {
		v.applyQuotas(l)
	}
	v.Fits, v.Score = v.outcome.fits, int64(v.outcome.score)
	return v
}

// applyQuotas tries smaller GPUs if the policy's exceed the quotas.
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

// Reasons counts the failed GPUs; zero if the pod fits.
func (v *Verdict) Reasons() Counts { return v.outcome.counts }

// Reason is the main reason; OK if the pod fits.
func (v *Verdict) Reason() Code {
	if v.Fits {
		return OK
	}
	return v.outcome.counts.Main()
}
