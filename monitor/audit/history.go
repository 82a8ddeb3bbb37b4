package audit

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// A violation begins after confirming passes with it in a row (libraries may be loading, or a claim was just released),
// and ends after overAfter passes without it.
const (
	confirming = 2
	overAfter  = 3
)

type Violation struct {
	Finding
	Since time.Time
}

type Step struct {
	Began, Over []Violation
	// Due are those that lasted for the grace time, with the processes to kill.
	Due []Violation
}

// History holds the findings of earlier passes.
type History struct {
	grace   time.Duration
	entries map[key]*entry
}

type entry struct {
	Violation
	looks, missed int
	confirmed     bool
	offended      map[orphans.Process]bool // in the last pass
}

func NewHistory(grace time.Duration) *History {
	return &History{grace: grace, entries: map[key]*entry{}}
}

// Step adds the findings of a pass.
func (h *History) Step(now time.Time, found []Finding) Step {
	var s Step
	seen := make(map[key]bool, len(found))
	for _, f := range found {
		k := f.key()
		seen[k] = true
		e := h.entries[k]
		if e == nil {
			e = &entry{Violation: Violation{Since: now}}
			h.entries[k] = e
		}
		last := e.offended
		e.see(f)
		if !e.confirmed && e.looks >= confirming {
			e.confirmed = true
			s.Began = append(s.Began, e.Violation)
		}
		if due := e.due(last); e.confirmed && now.Sub(e.Since) >= h.grace && len(due.Offenders) > 0 {
			s.Due = append(s.Due, due)
		}
	}
	for k, e := range h.entries {
		if seen[k] {
			continue
		}
		e.looks, e.offended = 0, nil
		e.missed++
		if e.confirmed && e.missed < overAfter {
			continue
		}
		delete(h.entries, k)
		if e.confirmed {
			s.Over = append(s.Over, e.Violation)
		}
	}
	sort(s.Over)
	return s
}

func (e *entry) see(f Finding) {
	e.Finding = f
	e.looks++
	e.missed = 0
	e.offended = make(map[orphans.Process]bool, len(f.Offenders))
	for _, o := range f.Offenders {
		e.offended[o.Process] = true
	}
}

// due has the offenders of the last two passes: in a single one a process may be just loading the limiter.
func (e *entry) due(last map[orphans.Process]bool) Violation {
	v := e.Violation
	v.Offenders = slices.DeleteFunc(slices.Clone(v.Offenders), func(o Offender) bool {
		return o.Spared != "" || !last[o.Process]
	})
	return v
}

func (h *History) Now() []Violation {
	var all []Violation
	for _, e := range h.entries {
		if e.confirmed {
			all = append(all, e.Violation)
		}
	}
	sort(all)
	return all
}

func sort(all []Violation) {
	slices.SortFunc(all, func(a, b Violation) int {
		x, y := a.key(), b.key()
		return cmp.Or(
			cmp.Compare(slices.Index(Kinds, x.kind), slices.Index(Kinds, y.kind)),
			cmp.Compare(x.container, y.container), cmp.Compare(x.uuid, y.uuid), cmp.Compare(x.process.PID, y.process.PID),
		)
	})
}
