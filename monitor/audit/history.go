package audit

import (
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// confirming is in how many looks in a row something has to be found to be a violation: a
// process that is just loading its libraries, and a claim that was given back between two
// of our questions, are none. A violation is over after pardoned looks without it: one
// that comes and goes is one.
const (
	confirming = 2
	pardoned   = 3
)

// Violation is a finding that was confirmed.
type Violation struct {
	Finding
	// Since is when it was seen first.
	Since time.Time
}

// Step is what a look has changed.
type Step struct {
	// Began and Over are violations that are new and that are gone.
	Began, Over []Violation
	// Due are those that have lasted for the grace time and were found in this look,
	// with the processes that are to be ended.
	Due []Violation
}

// History remembers what was found.
type History struct {
	grace   time.Duration
	entries map[key]*entry
}

type entry struct {
	Violation
	looks, missed int
	confirmed     bool
	offended      map[orphans.Process]bool // in the last look
}

// NewHistory begins one.
func NewHistory(grace time.Duration) *History {
	return &History{grace: grace, entries: map[key]*entry{}}
}

// Step takes a look in.
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
		if e.confirmed && e.missed < pardoned {
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

// due is the violation with those who may be ended: who was seen to do it in the last look
// too. One look proves nothing, also of a container whose grace is over: another process may
// be just loading the limiter, or be on its way to the GPU that its container was granted.
func (e *entry) due(last map[orphans.Process]bool) Violation {
	v := e.Violation
	v.Offenders = slices.DeleteFunc(slices.Clone(v.Offenders), func(o Offender) bool {
		return o.Spared != "" || !last[o.Process]
	})
	return v
}

// Now are the violations that last, in the order of their kinds and containers.
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
		for _, c := range []int{
			slices.Index(Kinds, x.kind) - slices.Index(Kinds, y.kind),
			compare(x.container, y.container), compare(x.uuid, y.uuid), x.process.PID - y.process.PID,
		} {
			if c != 0 {
				return c
			}
		}
		return 0
	})
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
