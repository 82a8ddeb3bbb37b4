package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

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

type Events interface {
	// Warn must not block, and may drop events.
	Warn(c Container, reason, message string)
}

// The values of the label action.
const (
	actionReported = "reported"
	actionKilled   = "killed"
	actionFailed   = "kill_failed"
)

var reasons = map[Kind]string{
	UngrantedProcess:  "UngrantedGPUProcess",
	NoLimiter:         "GPULimiterMissing",
	OverLimit:         "GPUMemoryOverLimit",
	DamagedUsageFile:  "GPUUsageFileDamaged",
	TamperedFiles:     "GPUFilesTampered",
	ForeignFiles:      "GPULimiterFilesForeign",
	ForeignDescriptor: "GPUDescriptorForeign",

	OverShare:           "GPUComputeOverShare",
	PrivilegedContainer: "GPUContainerPrivileged",
}

const killedReason = "GPUProcessKilled"

// The API server drops events after an hour.
const repeatEvent = 30 * time.Minute

type metrics struct {
	now   *prometheus.GaugeVec
	total *prometheus.CounterVec
	last  prometheus.Gauge
	took  prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) metrics {
	register := promauto.With(registry)
	m := metrics{
		now: register.NewGaugeVec(prometheus.GaugeOpts{
			Name: "gpuslice_violations", Help: "Present violations by kind (docs/AUDIT.md).",
		}, []string{"kind"}),
		total: register.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_violations_total", Help: "Reported violations, and processes killed or not killable for one, by kind.",
		}, []string{"kind", "action"}),
		last: register.NewGauge(prometheus.GaugeOpts{
			Name: "gpuslice_audit_last_timestamp_seconds", Help: "Time of the last audit pass.",
		}),
		took: register.NewGauge(prometheus.GaugeOpts{
			Name: "gpuslice_audit_duration_seconds", Help: "Duration of the last audit pass.",
		}),
	}
	for _, kind := range Kinds {
		m.now.WithLabelValues(string(kind))
		for _, action := range []string{actionReported, actionKilled, actionFailed} {
			if kind != HostProcess && kind != PrivilegedContainer && kind != OverShare || action == actionReported {
				m.total.WithLabelValues(string(kind), action)
			}
		}
	}
	return m
}

func (m *metrics) count(now []Violation) {
	sums := map[Kind]int{}
	for _, v := range now {
		sums[v.Kind]++
	}
	for _, kind := range Kinds {
		m.now.WithLabelValues(string(kind)).Set(float64(sums[kind]))
	}
}

func (a *Auditor) begin(v Violation, now time.Time) {
	a.metrics.total.WithLabelValues(string(v.Kind), actionReported).Inc()
	a.log.Warn("violation found", v.attributes()...)
	a.notify(v, now)
}

func (a *Auditor) notify(v Violation, now time.Time) {
	a.notified[v.key()] = now
	if v.Container.Pod == "" || a.config.Events == nil {
		return
	}
	a.config.Events.Warn(v.Container, reasons[v.Kind], v.Detail+more(len(v.Offenders)-1)+a.outlook(&v))
}

func (a *Auditor) outlook(v *Violation) string {
	switch {
	case !a.config.Kill || len(v.Offenders) == 0:
		return ""
	case v.spared() != "":
		return ". Not killed: " + v.spared()
	}
	return fmt.Sprintf(". These processes are killed after %s", a.config.Grace)
}

func more(others int) string {
	if others <= 0 {
		return ""
	}
	return fmt.Sprintf(", and %d more processes", others)
}

func (v *Violation) spared() string {
	why := ""
	for _, o := range v.Offenders {
		if o.Spared == "" {
			return ""
		}
		why = o.Spared
	}
	return why
}

func (v *Violation) attributes() []any {
	var pids []string
	for _, o := range v.Offenders[:min(len(v.Offenders), 16)] {
		pids = append(pids, fmt.Sprint(o.PID))
	}
	attributes := []any{"kind", string(v.Kind), "detail", v.Detail, "processes", strings.Join(pids, ","), "since", v.Since.Format(time.RFC3339)}
	if v.Container.ID != "" {
		attributes = append(attributes, "pod", v.Container.Namespace+"/"+v.Container.Pod, "container", v.Container.Name, "id", v.Container.ID)
	}
	if v.UUID != "" {
		attributes = append(attributes, "uuid", v.UUID)
	}
	return attributes
}
