package nriplugin

import (
	"errors"
	"time"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// Observer is told of what the plugin does, for metrics. It must not block: the runtime
// waits.
type Observer interface {
	// Handled tells of a request of the runtime, one of Events, that was answered.
	Handled(event string, took time.Duration)
	// Refused tells of a container that was refused, for one of Reasons.
	Refused(reason string)
}

// Events are the requests that an Observer is told of, by NRI's names.
var Events = []string{"RunPodSandbox", "CreateContainer", "StopContainer", "RemoveContainer", "ValidateContainerAdjustment", "Synchronize"}

// Why containers are refused that no error of package grant says.
const (
	reasonNoGrant      = "no_grant"       // it would have a GPU, and nothing was granted
	reasonUnreconciled = "not_reconciled" // it is not known what runs on the node
	reasonLate         = "late"           // the decision was not made before the runtime's deadline
	reasonNotAsked     = "not_asked"      // its request was lost
	reasonChanged      = "changed"        // another plugin changed what was granted
	reasonTooLarge     = "too_large"      // with it the runtime could not synchronise its NRI plugins
	reasonOther        = "other"
)

// kinds are the reasons that errors of package grant stand for.
var kinds = []struct {
	reason string
	err    error
}{
	{"malformed", grant.ErrMalformed},
	{"unknown_gpu", grant.ErrUnknownGPU},
	{"wrong_node", grant.ErrWrongNode},
	{"signature", grant.ErrSignature},
	{"ambiguous", grant.ErrAmbiguous},
	{"overbooked", grant.ErrOverbooked},
	{"slot_taken", ledger.ErrSlotTaken},
	{"conflict", ledger.ErrConflict},
	{"corrupt_ledger", ledger.ErrCorrupt},
	{"blocked", ledger.ErrBlocked},
}

// Reasons are all that an Observer is told.
func Reasons() []string {
	all := []string{reasonNoGrant, reasonUnreconciled, reasonLate, reasonNotAsked, reasonChanged, reasonTooLarge, reasonOther}
	for _, k := range kinds {
		all = append(all, k.reason)
	}
	return all
}

// reasoned is an error with its reason; its text is the error's.
type reasoned struct {
	reason string
	error
}

func (r *reasoned) Unwrap() error { return r.error }

// reasonOf is an error's reason.
func reasonOf(err error) string {
	var r *reasoned
	if errors.As(err, &r) {
		return r.reason
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.reason
		}
	}
	return reasonOther
}

// handled tells of a request; it is deferred with the time of its beginning.
func (p *Plugin) handled(event string, began time.Time) {
	if p.Observer != nil {
		p.Observer.Handled(event, time.Since(began))
	}
}

// refused reports a refusal, if there is one, and returns it with its text shortened.
func (p *Plugin) refused(err error) error {
	if err != nil && p.Observer != nil {
		p.Observer.Refused(reasonOf(err))
	}
	return shorten(err)
}

// Gone are the ids of containers that are gone and whose claims were not given back: the
// ledger could not be written when the runtime said so, or a process used the claim when
// the runtime was asked last, and doesn't any more.
func (p *Plugin) Gone() []string {
	var gone []string
	for id := range p.owed.due() {
		gone = append(gone, id)
	}
	if unlisted := p.unlisted.Load(); unlisted != nil {
		for _, id := range *unlisted {
			if !p.inUse(p.Ledger.Dir(id)) {
				gone = append(gone, id)
			}
		}
	}
	return gone
}
