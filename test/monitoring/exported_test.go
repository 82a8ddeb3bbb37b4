package monitoring

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
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

// agent is the agent's door, with the collectors that cmd/gpuslice-agent registers.
func agent(t *testing.T) http.Handler {
	registry := agentmetrics.NewRegistry("v1")
	nri := agentmetrics.NewNRI(nriplugin.Events, nriplugin.Reasons())
	for _, event := range nriplugin.Events {
		nri.Handled(event, time.Millisecond)
	}
	registry.MustRegister(nri, audit.New(audit.Config{Interval: time.Second}))
	read := func(context.Context) (view.Node, error) { return sample.Node("batch-17"), nil }
	return agentmetrics.NewDoor(agentmetrics.DoorConfig{
		Registry: registry, View: read,
		Gatherer: agentmetrics.NewGatherer(agentmetrics.GathererConfig{
			View: read, Connected: func() bool { return true }, Leaked: func() []string { return nil },
		}),
	})
}

// schedulers is what the scheduler's doors export together, after each has done everything once.
func schedulers(t *testing.T) http.Handler {
	e, err := sample.Cluster("batch-17")
	require.NoError(t, err)
	m := metrics.New()
	for door, verbs := range map[string][]string{
		"plugin": {"evaluate", "reserve", "annotate", "bind"}, "extender": {"filter", "filter-dryrun", "prioritize", "preempt", "bind"},
	} {
		for _, verb := range verbs {
			m.Took(door, verb, time.Now(), nil)
			m.Took(door, verb, time.Now(), errors.New("no"))
		}
		m.Denied(door, "CardInsufficientMemory")
		m.Prevented(door)
	}
	m.Reviewed("/mutate", "denied", "forged", time.Millisecond)
	m.Reviewed("/mutate", "patched", "", time.Millisecond)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m, metrics.Engine(e))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// add keeps an answer's numbers, with the labels of what was scraped where they have none of
// that name themselves.
func (s *store) add(t *testing.T, answer []byte, target map[string]string) {
	add := func(name, value string, own map[string]string) {
		all := maps.Clone(target)
		maps.Copy(all, own) // honor_labels
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
