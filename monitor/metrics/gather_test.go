package metrics_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/monitor/metrics"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// busy is a node with a container that has all numbers, one that has none, and one that has ended.
func busy() view.Node {
	measured := telemetry()[nodetest.H200]
	return view.Node{
		Name: "node-1",
		GPUs: []view.GPU{
			{
				UUID: nodetest.H200, Index: 0, Model: "NVIDIA H200", MemoryMiB: 1000, GrantableMiB: 2000, GrantedMemoryMiB: 300, GrantableCores: 200, GrantedCores: 30,
				GrantableReplicas: 10, GrantedContainers: 2, UsedBytes: 9, Healthy: true, Telemetry: &measured, ComputeSource: nvidia.TimesByLimiter,
			},
			{UUID: nodetest.T4, Index: 1, Model: "Tesla T4", MemoryMiB: 500, Unhealthy: "XID 79"},
		},
		Containers: []view.Container{
			{
				ContainerID: "c1", Pod: "ml/train", Name: "main", State: "active", Enforcement: "preload", UsageProblem: "grown",
				ResourceClaims: []string{"uid-1.gpu"}, Members: []view.Member{{ContainerID: "a"}, {ContainerID: "b"}},
				Shares: []view.Share{{
					UUID: nodetest.H200, MemoryMiB: 100, CorePercent: 30, UsedBytes: 7, ContextBytes: 3, ResidueBytes: 2, Processes: 4,
					ComputeNanoseconds: 1500000000, ThrottledNanoseconds: 250000000, Launches: 17, LastLaunch: time.UnixMilli(1700000000250),
					RefusedAllocations: 5, CoreUsedPercent: pointer(12.5),
				}},
			},
			{ContainerID: "c2", Name: "web\"\\\n", State: "active", Enforcement: "none", Shares: []view.Share{{UUID: nodetest.H200, MemoryMiB: 200}}},
			{ContainerID: "c3", Pod: "ml/done", State: "released", Enforcement: "preload", Shares: []view.Share{}},
			{ContainerID: "c4", State: "active", Enforcement: "", Shares: []view.Share{}},
		},
	}
}

func nodeConfig(read func(context.Context) (view.Node, error)) metrics.NodeConfig {
	return metrics.NodeConfig{View: read, Connected: func() bool { return true }, Orphans: func() []string { return nil }}
}

func reads(node view.Node) func(context.Context) (view.Node, error) {
	return func(context.Context) (view.Node, error) { return node, nil }
}

// registryOf is a registry that makes all of Prometheus' checks.
func registryOf(read func(context.Context) (view.Node, error), legacy ...metrics.Legacy) *prometheus.Registry {
	c := nodeConfig(read)
	c.Legacy = legacy
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics.NewNode(c))
	return registry
}

func TestGather(t *testing.T) {
	c := nodeConfig(reads(busy()))
	c.Orphans = func() []string { return []string{"c2", "c3", "gone"} }
	g := prometheus.NewPedanticRegistry()
	g.MustRegister(metrics.NewNode(c))
	wanted := map[string]string{}
	for _, f := range metrics.Families() {
		kind := "gauge"
		if f.Counter {
			kind = "counter"
		}
		wanted[f.Name] = "# HELP " + f.Name + " " + f.Help + "\n# TYPE " + f.Name + " " + kind + "\n"
	}
	add := func(name, labels, value string) { wanted[name] += name + labels + " " + value + "\n" }
	h200 := `{index="0",model="NVIDIA H200",node="node-1",uuid="` + nodetest.H200 + `"}`
	t4 := `{index="1",model="Tesla T4",node="node-1",uuid="` + nodetest.T4 + `"}`
	for name, of := range map[string][2]string{
		"memory_total_bytes": {"1048576000", "524288000"}, "memory_used_bytes": {"5368709120"}, "memory_grantable_bytes": {"2097152000", "0"},
		"memory_granted_bytes": {"314572800", "0"}, "utilization_ratio": {"0.87"}, "temperature_celsius": {"61"}, "power_watts": {"350.5"},
		"healthy": {"1", "0"}, "containers": {"2", "0"}, "containers_limit": {"10", "0"}, "cores_granted_ratio": {"0.3", "0"}, "cores_grantable_ratio": {"2", "0"},
	} {
		add("gpuslice_gpu_"+name, h200, of[0])
		if of[1] != "" {
			add("gpuslice_gpu_"+name, t4, of[1])
		}
	}
	add("gpuslice_gpu_core_use_source", `{index="0",model="NVIDIA H200",node="node-1",source="limiter",uuid="`+nodetest.H200+`"}`, "1")
	main := `{container="main",container_id="c1",namespace="ml",node="node-1",pod="train",uuid="` + nodetest.H200 + `"}`
	web := `{container="web\"\\\n",container_id="c2",namespace="",node="node-1",pod="",uuid="` + nodetest.H200 + `"}`
	for name, of := range map[string][2]string{
		"memory_used_bytes": {"7", "0"}, "memory_limit_bytes": {"104857600", "209715200"}, "memory_residue_bytes": {"2", "0"},
		"core_limit_ratio": {"0.3", "1"}, "core_used_ratio": {"0.125"}, "compute_seconds_total": {"1.5", "0"}, "throttled_seconds_total": {"0.25", "0"},
		"launches_total": {"17", "0"}, "last_launch_timestamp_seconds": {"1.70000000025e+09"}, "processes": {"4", "0"},
		"refused_allocations_total": {"5", "0"}, "usage_file_damaged": {"1", "0"},
	} {
		add("gpuslice_container_"+name, main, of[0])
		if of[1] != "" {
			add("gpuslice_container_"+name, web, of[1])
		}
	}
	add("gpuslice_resourceclaim_containers", `{container_id="c1",node="node-1",request="gpu",resourceclaim_uid="uid-1"}`, "2")
	add("gpuslice_claims", "", "3")
	add("gpuslice_orphans", "", "1")
	add("gpuslice_nri_connected", "", "1")
	for enforcement, count := range map[string]string{"": "1", "preload": "1", "library": "0", "preload+library": "0", "none": "1"} {
		add("gpuslice_containers", `{enforcement="`+enforcement+`"}`, count)
	}
	var text strings.Builder
	for _, lines := range wanted {
		text.WriteString(lines)
	}
	require.NoError(t, testutil.GatherAndCompare(g, strings.NewReader(text.String())))
	problems, err := testutil.GatherAndLint(g)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// A node without GPUs and containers.
func TestGatherNothing(t *testing.T) {
	count, err := testutil.GatherAndCount(registryOf(reads(view.Node{Name: "n"})))
	require.NoError(t, err)
	assert.Equal(t, 3+4, count, "claims, orphans, nri_connected, and each enforcement")
}

// Two scrapes at the same time do not mix their numbers.
func TestGatherConcurrently(t *testing.T) {
	g := registryOf(reads(busy()))
	want, err := testutil.GatherAndCount(g)
	require.NoError(t, err)
	var scrapes sync.WaitGroup
	for range 8 {
		scrapes.Go(func() {
			for range 10 {
				count, err := testutil.GatherAndCount(g)
				assert.NoError(t, err)
				assert.Equal(t, want, count)
			}
		})
	}
	scrapes.Wait()
}

func TestHandler(t *testing.T) {
	failure := error(nil)
	read := func(context.Context) (view.Node, error) { return busy(), failure }
	registry := metrics.NewRegistry("v1.2.3")
	nri := metrics.NewNRI(registry, []string{"CreateContainer"}, []string{"overcommitted", "late"})
	nri.Handled("CreateContainer", 3*time.Millisecond)
	nri.Refused("late")
	c := nodeConfig(read)
	c.Connected = func() bool { return false }
	registry.MustRegister(metrics.NewNode(c))
	handler := metrics.NewHandler(metrics.HandlerConfig{Registry: registry, View: read, Page: http.NotFoundHandler()})
	get := func(path string) *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		return answer
	}
	answer := get("/metrics")
	require.Equal(t, http.StatusOK, answer.Code)
	for _, line := range []string{
		`gpuslice_build_info{goversion=`, `version="v1.2.3"} 1`, "\ngpuslice_nri_connected 0\n", `gpuslice_refusals_total{reason="overcommitted"} 0`,
		`gpuslice_refusals_total{reason="late"} 1`, `gpuslice_nri_request_duration_seconds_count{event="CreateContainer"} 1`,
		`gpuslice_nri_request_duration_seconds_bucket{event="CreateContainer",le="0.0032"} 1`, "\ngpuslice_claims 3\n", "\ngo_goroutines ", "\nprocess_open_fds ",
	} {
		assert.Contains(t, answer.Body.String(), line)
	}
	answer = get("/api/v1/view")
	require.Equal(t, http.StatusOK, answer.Code)
	assert.Equal(t, "application/json", answer.Header().Get("Content-Type"))
	assert.Contains(t, answer.Body.String(), `"temperatureCelsius":61`)

	failure = errors.New("ledger unreadable")
	answer = get("/metrics")
	assert.Equal(t, http.StatusOK, answer.Code, "other metrics are exported")
	assert.Contains(t, answer.Body.String(), "gpuslice_build_info")
	assert.NotContains(t, answer.Body.String(), "gpuslice_claims")
	assert.Contains(t, get("/metrics").Body.String(), `promhttp_metric_handler_errors_total{cause="gathering"} 1`)
	answer = get("/api/v1/view")
	assert.Equal(t, http.StatusServiceUnavailable, answer.Code)
	assert.Contains(t, answer.Body.String(), "unreadable")
	assert.Equal(t, http.StatusNotFound, get("/metric").Code, "gpu-manager's path exists with its names only")
	handler = metrics.NewHandler(metrics.HandlerConfig{Registry: registryOf(reads(busy()), metrics.Legacies...), View: read, GPUManagerPath: true})
	assert.Contains(t, get("/metric").Body.String(), "container_gpu_memory_total{")
	post := httptest.NewRecorder()
	handler.ServeHTTP(post, httptest.NewRequest(http.MethodPost, "/metrics", nil))
	assert.Equal(t, http.StatusMethodNotAllowed, post.Code)
}

// Each request reads the node's files: few are handled at the same time.
func TestHandlerLimitsConcurrency(t *testing.T) {
	arrived, leave := make(chan struct{}), make(chan struct{})
	wait := func() { arrived <- struct{}{}; <-leave }
	handler := metrics.NewHandler(metrics.HandlerConfig{
		Registry: registryOf(reads(busy())),
		View:     func(context.Context) (view.Node, error) { wait(); return busy(), nil },
		Page:     http.HandlerFunc(func(http.ResponseWriter, *http.Request) { wait() }),
	})
	get := func(path string) int {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		return answer.Code
	}
	for _, path := range []string{"/api/v1/view", "/"} {
		answers := make(chan int)
		for range httpserver.InFlight {
			go func() { answers <- get(path) }()
			<-arrived
		}
		assert.Equal(t, http.StatusServiceUnavailable, get(path), path)
		assert.Equal(t, http.StatusOK, get("/metrics"), "each path has its own limit")
		for range httpserver.InFlight {
			leave <- struct{}{}
			assert.Equal(t, http.StatusOK, <-answers, path)
		}
	}
}

func pointer[T any](v T) *T { return &v }

// telemetry is of the node's H200; the other GPU has none.
func telemetry() map[string]nvidia.Telemetry {
	return map[string]nvidia.Telemetry{nodetest.H200: {
		Taken: time.Now(), MemoryUsedBytes: pointer(uint64(5 << 30)), MemoryTotalBytes: pointer(uint64(143771 << 20)),
		UtilizationPercent: pointer(87), MemoryControllerPercent: pointer(43), TemperatureCelsius: pointer(61), PowerMilliwatts: pointer(uint32(350500)),
	}}
}
