package audit

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Events tells of what happened to a pod, where people look for it.
type Events interface {
	// Warn tells of a pod's container. It must not block, and may drop what is too much.
	Warn(c Container, reason, message string)
}

// The actions of gpuslice_violations_total.
const (
	actionReported = "reported"
	actionKilled   = "killed"
	actionFailed   = "kill_failed"
)

// reasons are what events are found by.
var reasons = map[Kind]string{
	UngrantedProcess:  "UngrantedGPUProcess",
	NoLimiter:         "GPULimiterMissing",
	OverLimit:         "GPUMemoryOverLimit",
	DamagedUsageFile:  "GPUUsageFileDamaged",
	TamperedFiles:     "GPUFilesTampered",
	ForeignFiles:      "GPULimiterFilesForeign",
	ForeignDescriptor: "GPUDescriptorForeign",

	PrivilegedContainer: "GPUContainerPrivileged",
}

// killedReason is the event of a process that was ended.
const killedReason = "GPUProcessKilled"

// again is how often an event tells of a violation that lasts: the API server forgets
// events after an hour.
const again = 30 * time.Minute

// metrics are what is counted.
type metrics struct {
	now   *prometheus.GaugeVec
	total *prometheus.CounterVec
	last  prometheus.Gauge
	took  prometheus.Gauge
}

func newMetrics() metrics {
	m := metrics{
		now: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "gpuslice_violations", Help: "Violations of what was granted that last, by kind (docs/AUDIT.md).",
		}, []string{"kind"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_violations_total", Help: "Violations that were reported, and processes that were killed for one or could not be, by kind.",
		}, []string{"kind", "action"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gpuslice_audit_last_timestamp_seconds", Help: "When what runs was last compared with what was granted.",
		}),
		took: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gpuslice_audit_duration_seconds", Help: "How long the last comparison took.",
		}),
	}
	for _, kind := range Kinds {
		m.now.WithLabelValues(string(kind))
		for _, action := range []string{actionReported, actionKilled, actionFailed} {
			if kind != HostProcess && kind != PrivilegedContainer || action == actionReported {
				m.total.WithLabelValues(string(kind), action)
			}
		}
	}
	return m
}

// Describe implements prometheus.Collector.
func (a *Auditor) Describe(c chan<- *prometheus.Desc) {
	for _, m := range a.metrics.all() {
		m.Describe(c)
	}
}

// Collect implements prometheus.Collector.
func (a *Auditor) Collect(c chan<- prometheus.Metric) {
	for _, m := range a.metrics.all() {
		m.Collect(c)
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.now, m.total, m.last, m.took}
}

// count sets what lasts.
func (m *metrics) count(now []Violation) {
	sums := map[Kind]int{}
	for _, v := range now {
		sums[v.Kind]++
	}
	for _, kind := range Kinds {
		m.now.WithLabelValues(string(kind)).Set(float64(sums[kind]))
	}
}

// begin tells of a violation that is new.
func (a *Auditor) begin(v Violation, now time.Time) {
	a.metrics.total.WithLabelValues(string(v.Kind), actionReported).Inc()
	a.log.Warn("violation of what was granted", v.attributes()...)
	a.tell(v, now)
}

// tell makes the event of a violation.
func (a *Auditor) tell(v Violation, now time.Time) {
	a.told[v.key()] = now
	if v.Container.Pod == "" || a.config.Events == nil {
		return
	}
	a.config.Events.Warn(v.Container, reasons[v.Kind], v.Detail+more(len(v.Offenders)-1)+a.outlook(&v))
}

// outlook says what becomes of who does it.
func (a *Auditor) outlook(v *Violation) string {
	switch {
	case !a.config.Kill || len(v.Offenders) == 0:
		return ""
	case v.spared() != "":
		return ". Nothing is killed: " + v.spared()
	}
	return fmt.Sprintf(". What does it is killed once it has gone on for %s", a.config.Grace)
}

// more says how many others there are.
func more(others int) string {
	if others <= 0 {
		return ""
	}
	return fmt.Sprintf(", and %d more processes with it", others)
}

// spared is why nobody who does it is to be ended; empty: somebody may be.
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

// attributes are a violation's in the log.
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

// sayOnce logs a problem when it comes or becomes another.
func sayOnce(log *slog.Logger, said *string, what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != *said {
		log.Warn(what, "error", err)
	}
	*said = text
}
