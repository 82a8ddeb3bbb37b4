package nriplugin

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// Observer counts what the plugin does, for metrics. It must not block: the runtime waits.
type Observer interface {
	// Handled is called after each request, with one of Events.
	Handled(event string, took time.Duration)
	// Refused is called for a refused container, with one of Reasons.
	Refused(reason string)
}

// Events are the requests that an Observer counts, by NRI's names.
var Events = []string{"RunPodSandbox", "CreateContainer", "StopContainer", "RemoveContainer", "ValidateContainerAdjustment", "Synchronize"}

// Reasons of refusals that are not errors of package grant or ledger.
const (
	reasonNoGrant      = "no_grant"       // it would have a GPU without a grant
	reasonUnreconciled = "not_reconciled" // the containers on the node are not known
	reasonLate         = "late"           // no decision before the runtime's deadline
	reasonNotAsked     = "not_asked"      // its CreateContainer request was lost
	reasonChanged      = "changed"        // another plugin changed what was granted
	reasonTooLarge     = "too_large"      // the runtime could not synchronise its NRI plugins
	reasonOther        = "other"
)

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
	{"isolation", grant.ErrIsolation},
	{"position_taken", ledger.ErrPositionTaken},
	{"not_prepared", prepared.ErrNotPrepared},
	{"resource_claim_in_use", ledger.ErrResourceClaimInUse},
	{"conflict", ledger.ErrConflict},
	{"corrupt_ledger", ledger.ErrCorrupt},
	{"blocked", ledger.ErrBlocked},
}

func Reasons() []string {
	all := []string{reasonNoGrant, reasonUnreconciled, reasonLate, reasonNotAsked, reasonChanged, reasonTooLarge, reasonOther}
	for _, k := range kinds {
		all = append(all, k.reason)
	}
	return all
}

type reasoned struct {
	reason string
	error
}

func (r *reasoned) Unwrap() error { return r.error }

func reasonOf(err error) string {
	if r, is := errors.AsType[*reasoned](err); is {
		return r.reason
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.reason
		}
	}
	return reasonOther
}

func (p *Plugin) observe(event string, began time.Time) {
	if p.Observer != nil {
		p.Observer.Handled(event, time.Since(began))
	}
}

func (p *Plugin) refused(err error) error {
	if err != nil && p.Observer != nil {
		p.Observer.Refused(reasonOf(err))
	}
	return shorten(err)
}

// Gone returns the IDs of containers that are gone and still have a claim.
func (p *Plugin) Gone() []string {
	gone := slices.Collect(maps.Keys(p.pending.all()))
	if unlisted := p.unlisted.Load(); unlisted != nil {
		for _, id := range *unlisted {
			if !p.inUse(p.Ledger.Dir(id)) {
				gone = append(gone, id)
			}
		}
	}
	return gone
}
