package main

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/audit"
	"github.com/gpuslice/gpuslice/monitor/metrics"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

const metricsManual = "../../docs/METRICS.md"

// told are all families that an agent tells of, but for what every Go program does.
func told(t *testing.T) []metrics.Family {
	registry := metrics.NewRegistry("v0")
	registry.MustRegister(metrics.NewNRI(nriplugin.Events, nriplugin.Reasons()), audit.New(audit.Config{Log: slog.New(slog.DiscardHandler)}))
	families, err := registry.Gather()
	require.NoError(t, err)
	all := metrics.Families()
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "gpuslice_") {
			continue
		}
		told := metrics.Family{Name: f.GetName(), Help: f.GetHelp(), Counter: f.GetType() == dto.MetricType_COUNTER}
		if f.GetType() == dto.MetricType_HISTOGRAM {
			told.Help += " A histogram."
		}
		for _, l := range f.Metric[0].Label {
			told.Labels = append(told.Labels, l.GetName())
		}
		all = append(all, told)
	}
	slices.SortFunc(all, func(a, b metrics.Family) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// table is families as Markdown.
func table(families []metrics.Family) string {
	var text strings.Builder
	text.WriteString("| metric | type | labels | what it says |\n|---|---|---|---|\n")
	for _, f := range families {
		kind := "gauge"
		switch {
		case f.Counter:
			kind = "counter"
		case strings.HasSuffix(f.Help, " A histogram."):
			kind, f.Help = "histogram", strings.TrimSuffix(f.Help, " A histogram.")
		}
		fmt.Fprintf(&text, "| `%s` | %s | %s | %s |\n", f.Name, kind, strings.Join(f.Labels, ", "), f.Help)
	}
	return text.String()
}

// of are the families of one program's names.
func of(program metrics.Legacy) []metrics.Family {
	return metrics.Families(program)[len(metrics.Families()):]
}

// The manual's tables are of the metrics as they are: `make generate` writes them.
func TestMetricsManual(t *testing.T) {
	kept, err := os.ReadFile(metricsManual)
	require.NoError(t, err)
	page := string(kept)
	for name, families := range map[string][]metrics.Family{
		"agent": told(t), "hami": of(metrics.HAMi), "gpu-manager": of(metrics.GPUManager),
	} {
		begin, end := "<!-- generated: "+name+" -->\n", "<!-- end -->\n"
		before, rest, found := strings.Cut(page, begin)
		require.True(t, found, "%s has no place for %s", metricsManual, name)
		_, after, found := strings.Cut(rest, end)
		require.True(t, found)
		page = before + begin + table(families) + end + after
	}
	if *update {
		require.NoError(t, os.WriteFile(metricsManual, []byte(page), 0o644))
	}
	assert.True(t, page == string(kept) || *update, "%s is not of the metrics as they are; if that is meant: make generate", metricsManual)
}

// What is in the manual is what a scrape gives.
func TestMetricsManualIsOfAScrape(t *testing.T) {
	o := testOptions(t)
	o.LegacyMetrics = []string{"hami", "gpu-manager"}
	stop, log := o.run(t)
	body := ""
	require.Eventually(t, func() bool {
		body = get(o.MetricsAddress, "/metrics").body
		return strings.Contains(body, "gpuslice_card_temperature_celsius{")
	}, 20*time.Second, 5*time.Millisecond, "%v", log)
	require.NoError(t, stop())
	documented := map[string]bool{}
	for _, f := range slices.Concat(told(t), of(metrics.HAMi), of(metrics.GPUManager)) {
		documented[f.Name] = true
	}
	for line := range strings.Lines(body) {
		name, isType := strings.CutPrefix(line, "# TYPE ")
		name, _, _ = strings.Cut(name, " ")
		if isType && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") && !strings.HasPrefix(name, "promhttp_") {
			assert.True(t, documented[name], name)
		}
	}
}
