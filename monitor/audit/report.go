package audit

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

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
			if kind != HostProcess && kind != PrivilegedContainer || action == actionReported {
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
