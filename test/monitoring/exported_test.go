package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/audit"
	agentmetrics "github.com/gpuslice/gpuslice/monitor/metrics"
	"github.com/gpuslice/gpuslice/monitor/view"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/test/monitoring/sample"
)

// scrape reads a handler's metrics as Prometheus does.
func scrape(t *testing.T, h http.Handler) []byte {
	server := httptest.NewServer(h)
	defer server.Close()
	response, err := http.Get(server.URL + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, string(text))
	return text
}

// agent is the agent's component, with the collectors that cmd/gpuslice-agent registers.
func agent(t *testing.T) http.Handler {
	registry := agentmetrics.NewRegistry("v1")
	nri := agentmetrics.NewNRI(registry, nriplugin.Events, nriplugin.Reasons())
	for _, event := range nriplugin.Events {
		nri.Handled(event, time.Millisecond)
	}
	agentmetrics.RegisterBarrier(registry, true)
	read := func(context.Context) (view.Node, error) { return sample.Node("batch-17"), nil }
	registry.MustRegister(audit.New(audit.Config{Interval: time.Second}), agentmetrics.NewNode(agentmetrics.NodeConfig{
		View: read, Connected: func() bool { return true }, Orphans: func() []string { return nil },
	}))
	return agentmetrics.NewHandler(agentmetrics.HandlerConfig{Registry: registry, View: read})
}

// scheduler is what one of the scheduler's components exports, after it has done everything once.
func scheduler(t *testing.T, component string, verbs ...string) http.Handler {
	e, err := sample.Cluster("batch-17")
	require.NoError(t, err)
	m := metrics.New()
	for _, verb := range verbs {
		m.Observe(component, verb, time.Now(), nil)
		m.Observe(component, verb, time.Now(), errors.New("no"))
	}
	m.Denied(component, "CardInsufficientMemory")
	m.Conflict(component)
	return exporter(m, metrics.Engine(e))
}

// admission is what the webhook exports, which has no cluster in mind.
func admission() http.Handler {
	m := metrics.New()
	m.Reviewed("/mutate", "denied", "forged", time.Millisecond)
	m.Reviewed("/mutate", "patched", "", time.Millisecond)
	return exporter(m)
}

func exporter(collectors ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors...)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// program is one of those that export something: each has a registry of its own, and is scraped if the chart has a
// monitor for it.
type program struct {
	mode, component string
	address, pod    string
	exports         http.Handler
}

func programs(t *testing.T) []program {
	return []program{
		{"plugin", "agent", "10.0.0.7:9394", "gpuslice-agent-x", agent(t)},
		{"plugin", "scheduler", "10.0.0.8:10259", "gpuslice-scheduler-x", scheduler(t, "plugin", "evaluate", "reserve", "annotate", "bind")},
		{"plugin", "webhook", "10.0.0.9:8443", "gpuslice-webhook-x", admission()},
		{"extender", "scheduler", "10.0.0.10:10261", "gpuslice-extender-x", scheduler(t, "extender", "filter", "filter-dryrun", "prioritize", "preempt", "bind")},
	}
}

// target is what the chart's monitor makes of a program. test/chart writes them.
type target struct {
	Job         string
	HonorLabels bool
	Labels      []string
}

// targets are by the scheduler's mode and the component.
func targets(t *testing.T) (all map[string]map[string]target) {
	data, err := os.ReadFile("../chart/testdata/targets.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &all))
	return all
}

// scrapeAll scrapes what the chart has Prometheus scrape.
func (s *store) scrapeAll(t *testing.T) {
	monitored := targets(t)
	for _, p := range programs(t) {
		made, is := monitored[p.mode][p.component]
		if !is {
			continue
		}
		labels := map[string]string{"job": made.Job, "instance": p.address, "namespace": "gpuslice-system", "pod": p.pod, "container": p.component}
		for _, l := range made.Labels {
			require.Equal(t, "node", l)
			labels[l] = "gpu-node-7"
		}
		s.add(t, scrape(t, p.exports), labels, made.HonorLabels)
	}
}

// add keeps an answer's numbers with the labels of what was scraped. Where both have a label the number's own one
// holds if it is honoured, and is called exported_… otherwise.
func (s *store) add(t *testing.T, answer []byte, target map[string]string, honor bool) {
	add := func(name, value string, own map[string]string) {
		all := maps.Clone(target)
		for label, value := range own {
			if _, both := target[label]; both && !honor {
				label = "exported_" + label
			}
			all[label] = value
		}
		all[model.MetricNameLabel] = name
		number, err := strconv.ParseFloat(value, 64)
		require.NoError(t, err, name)
		*s = append(*s, constant{labels.FromMap(all), number})
	}
	add("up", "1", nil)
	for line := range strings.Lines(string(answer)) {
		if text := strings.TrimSpace(line); text != "" && text[0] != '#' {
			name, own, value := sampleLine(t, text)
			add(name, value, own)
		}
	}
}

// sampleLine is a line of Prometheus' text format.
func sampleLine(t *testing.T, line string) (name string, own map[string]string, value string) {
	own = map[string]string{}
	space := strings.LastIndexByte(line, ' ')
	name, value = line[:space], line[space+1:]
	head, rest, found := strings.Cut(name, "{")
	if !found {
		return name, own, value
	}
	for rest != "}" {
		key, quoted, found := strings.Cut(rest, "=")
		require.True(t, found, line)
		text, err := strconv.QuotedPrefix(quoted)
		require.NoError(t, err, line)
		own[key], err = strconv.Unquote(text)
		require.NoError(t, err, line)
		rest = strings.TrimPrefix(quoted[len(text):], ",")
	}
	return head, own, value
}
