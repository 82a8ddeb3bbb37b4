package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/audit"
	"github.com/gpuslice/gpuslice/monitor/metrics"
	"github.com/gpuslice/gpuslice/monitor/view"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	schedmetrics "github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/loopback"
)

const metricsManual = "../../docs/METRICS.md"

// published are all families of the agent, except those of every Go program.
func published(t *testing.T) []metrics.Family {
	registry := metrics.NewRegistry("v0")
	metrics.NewNRI(registry, nriplugin.Events, nriplugin.Reasons())
	metrics.RegisterBarrier(registry, true)
	registry.MustRegister(audit.New(audit.Config{Log: slog.New(slog.DiscardHandler)}))
	return gathered(t, registry, metrics.Families(), func(name string) bool { return strings.HasPrefix(name, "gpuslice_") })
}

// scheduled are all families of a scheduler that knows a GPU, a pod on it and a quota, and has answered a call of each
// kind; and those by HAMi's names.
func scheduled(t *testing.T) (ours, hami []metrics.Family) {
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(t, err)
	e.SetNode(&scheduler.Node{Name: "n", Annotations: map[string]string{
		"hami.io/node-nvidia-register": `[{"id":"GPU-00000000-0000-4000-8000-000000000000","count":10,"devmem":1000,"devcore":100,"type":"NVIDIA A","health":true}]`,
	}})
	p := &scheduler.Pod{UID: "u", Namespace: "d", Name: "p", Containers: []scheduler.Container{{Name: "c", Resources: map[string]scheduler.Amount{"nvidia.com/gpu": {Value: 1}}}}}
	r, err := e.Request(p)
	require.NoError(t, err)
	_, err = e.Reserve(p, r, "n", "test")
	require.NoError(t, err)
	e.SetPod(&scheduler.Pod{UID: "v", Namespace: "d", Name: "q", Containers: p.Containers})
	e.SetQuota("d", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 1, Cores: 1}})
	counters := schedmetrics.New()
	counters.Observe("extender", "filter", time.Now(), nil)
	counters.Denied("extender", "reason")
	counters.Conflict("extender")
	counters.Reviewed("/mutate", "allowed", "", 0)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(counters, schedmetrics.Engine(e))
	legacy := prometheus.NewPedanticRegistry()
	legacy.MustRegister(schedmetrics.HAMi(e))
	every := func(string) bool { return true }
	return gathered(t, registry, nil, every), gathered(t, legacy, nil, every)
}

// gathered are a registry's families of the names that are wanted, beside others that are known.
func gathered(t *testing.T, from prometheus.Gatherer, all []metrics.Family, wanted func(name string) bool) []metrics.Family {
	families, err := from.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if !wanted(f.GetName()) {
			continue
		}
		family := metrics.Family{Name: f.GetName(), Help: f.GetHelp(), Counter: f.GetType() == dto.MetricType_COUNTER}
		if f.GetType() == dto.MetricType_HISTOGRAM {
			family.Help += " A histogram."
		}
		for _, l := range f.Metric[0].Label {
			family.Labels = append(family.Labels, l.GetName())
		}
		all = append(all, family)
	}
	slices.SortFunc(all, func(a, b metrics.Family) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// table is families as Markdown.
func table(families []metrics.Family) string {
	var text strings.Builder
	text.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
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
	ours, legacy := scheduled(t)
	for name, families := range map[string][]metrics.Family{
		"scheduler": ours, "scheduler-hami": legacy,
		"agent": published(t), "hami": of(metrics.HAMi), "gpu-manager": of(metrics.GPUManager),
	} {
		golden.Section(t, metricsManual, "<!-- generated: "+name+" -->\n", "<!-- end -->\n", table(families))
	}
}

// What is in the manual is what a scrape gives.
func TestMetricsManualIsOfAScrape(t *testing.T) {
	o := testOptions(t)
	o.LegacyMetrics = []string{"hami", "gpu-manager"}
	stop, log := o.run(t)
	body := ""
	require.Eventually(t, func() bool {
		body = get(o.MetricsAddress, "/metrics").body
		return strings.Contains(body, "gpuslice_gpu_temperature_celsius{")
	}, time.Minute, 5*time.Millisecond, "%v", log)
	require.NoError(t, stop())
	documented := map[string]bool{}
	for _, f := range slices.Concat(published(t), of(metrics.HAMi), of(metrics.GPUManager)) {
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

// What the agent shows: the GPUs by NVML, without a container runtime.
func TestMetricsHandler(t *testing.T) {
	o := testOptions(t)
	o.DebugAddress = loopback.FreeAddress(t)
	stop, log := o.run(t)
	var node view.Node
	require.Eventually(t, func() bool {
		answer := get(o.MetricsAddress, "/api/v1/view")
		return answer.status == 200 && json.Unmarshal([]byte(answer.body), &node) == nil && len(node.GPUs) == 1 && node.GPUs[0].Telemetry != nil
	}, 2*time.Minute, 5*time.Millisecond, "%v", log)
	assert.Equal(t, "node-1", node.Name)
	assert.True(t, node.GPUs[0].Healthy)
	assert.NotNil(t, node.GPUs[0].Telemetry.TemperatureCelsius)
	assert.Equal(t, []view.Container{}, node.Containers)

	page := get(o.MetricsAddress, "/")
	assert.Equal(t, 200, page.status)
	assert.Contains(t, page.body, "GPUs of node-1")
	assert.Contains(t, page.body, node.GPUs[0].UUID)

	metrics := get(o.MetricsAddress, "/metrics")
	require.Equal(t, 200, metrics.status)
	gpu := `{index="0",model="NVIDIA H200",node="node-1",uuid="` + node.GPUs[0].UUID + `"}`
	for _, line := range []string{
		"gpuslice_gpu_healthy" + gpu + " 1", "gpuslice_gpu_containers" + gpu + " 0", "gpuslice_gpu_temperature_celsius" + gpu + " 30",
		"gpuslice_nri_connected 0", "gpuslice_claims 0", "gpuslice_orphans 0", `gpuslice_containers{enforcement="preload"} 0`,
		`gpuslice_refusals_total{reason="overbooked"} 0`, `gpuslice_nri_request_duration_seconds_count{event="CreateContainer"} 0`,
	} {
		assert.Contains(t, metrics.body, "\n"+line+"\n")
	}
	assert.Contains(t, metrics.body, "gpuslice_build_info{")
	assert.Equal(t, 404, get(o.MetricsAddress, "/healthz").status, "that is --health-address's")
	assert.Equal(t, 200, get(o.DebugAddress, "/debug/pprof/heap").status)
	assert.Equal(t, 404, get(o.DebugAddress, "/metrics").status)
	for _, address := range []string{o.MetricsAddress, o.HealthAddress} {
		assert.Equal(t, 404, get(address, "/debug/pprof/heap").status, "only at --debug-address")
	}
	require.NoError(t, stop())
	o.DebugAddress = ""

	taken, err := net.Listen("tcp", o.MetricsAddress)
	require.NoError(t, err, "its port is free again")
	defer taken.Close()
	stop, _ = o.run(t)
	require.ErrorContains(t, stop(), "--metrics-address: listen tcp")
	o.MetricsAddress = ""
	stop, log = o.run(t)
	require.Eventually(t, func() bool { return get(o.HealthAddress, "/healthz").status == 200 }, 2*time.Minute, 5*time.Millisecond, "%v", log)
	require.NoError(t, stop())
}
