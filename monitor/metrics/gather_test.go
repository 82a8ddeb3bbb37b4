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
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/monitor/metrics"
	"github.com/gpuslice/gpuslice/monitor/node/nodetest"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// busy is a node with a container that has all that there is to tell, one that has nothing
// to tell, and one that has ended.
func busy() view.Node {
	told := telemetry()[nodetest.H200]
	return view.Node{
		Name: "node-1",
		GPUs: []view.GPU{
			{
				UUID: nodetest.H200, Index: 0, Model: "NVIDIA H200", MemoryMiB: 1000, GrantableMiB: 2000, GrantedMemoryMiB: 300, GrantableCores: 200, GrantedCores: 30,
				GrantableSlots: 10, GrantedContainers: 2, UsedBytes: 9, Healthy: true, Telemetry: &told,
			},
			{UUID: nodetest.T4, Index: 1, Model: "Tesla T4", MemoryMiB: 500, Unhealthy: "XID 79"},
		},
		Containers: []view.Container{
			{
				ContainerID: "c1", Pod: "ml/train", Name: "main", State: "active", Enforcement: "preload", UsageProblem: "grown",
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

func gathererOf(node view.Node) *metrics.Gatherer {
	return metrics.NewGatherer(metrics.GathererConfig{
		View: func(context.Context) (view.Node, error) { return node, nil }, Connected: func() bool { return true }, Leaked: func() []string { return []string{"c2", "c3", "gone"} },
	})
}

// checked has Prometheus' own checks made of what a gatherer gives.
func checked(g *metrics.Gatherer) prometheus.Gatherer {
	return prometheus.Gatherers{prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, _, err := g.Gather() // never done: it is looked at later
		return families, err
	})}
}

func TestGather(t *testing.T) {
	g := checked(gathererOf(busy()))
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
	add("gpuslice_grants", "", "3")
	add("gpuslice_leaked_claims", "", "1")
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

// A node without GPUs and containers has no numbers of them.
func TestGatherNothing(t *testing.T) {
	count, err := testutil.GatherAndCount(checked(gathererOf(view.Node{Name: "n"})))
	require.NoError(t, err)
	assert.Equal(t, 3+4, count, "grants, leaked_claims, nri_connected, and each enforcement")
}

// The memory of one scrape is another's later: none sees the other's numbers, though they
// go on at once and have different sizes.
func TestGatherAtOnce(t *testing.T) {
	small, large := busy(), busy()
	for range 50 {
		large.Containers = append(large.Containers, large.Containers[0])
		large.Containers[len(large.Containers)-1].ContainerID = "c1" + strings.Repeat("x", len(large.Containers))
	}
	turn := make(chan view.Node, 1)
	g := metrics.NewGatherer(metrics.GathererConfig{
		View: func(context.Context) (view.Node, error) { return <-turn, nil }, Connected: func() bool { return true }, Leaked: func() []string { return nil },
	})
	text := func(families []*dto.MetricFamily) string {
		var all strings.Builder
		for _, f := range families {
			all.WriteString(f.String())
		}
		return all.String()
	}
	ask := func(n view.Node) (string, func()) {
		turn <- n
		families, done, err := g.Gather()
		require.NoError(t, err)
		return text(families), done
	}
	wantSmall, done := ask(small)
	done()
	wantLarge, done := ask(large)
	done()
	require.NotEqual(t, wantSmall, wantLarge)
	var asking sync.Mutex // which view is whose
	var scrapes sync.WaitGroup
	for i := range 8 {
		scrapes.Go(func() {
			for j := range 50 {
				node, want := small, wantSmall
				if (i+j)%2 == 0 {
					node, want = large, wantLarge
				}
				asking.Lock()
				turn <- node
				families, done, err := g.Gather()
				asking.Unlock()
				if assert.NoError(t, err) {
					assert.True(t, want == text(families), "another scrape's numbers")
				}
				done()
			}
		})
	}
	scrapes.Wait()
}

func TestDoor(t *testing.T) {
	failure := error(nil)
	read := func(context.Context) (view.Node, error) { return busy(), failure }
	registry := metrics.NewRegistry("v1.2.3")
	nri := metrics.NewNRI([]string{"CreateContainer"}, []string{"overbooked", "late"})
	registry.MustRegister(nri)
	nri.Handled("CreateContainer", 3*time.Millisecond)
	nri.Refused("late")
	door := metrics.NewDoor(metrics.DoorConfig{
		Registry: registry, View: read, Page: http.NotFoundHandler(),
		Gatherer: metrics.NewGatherer(metrics.GathererConfig{View: read, Connected: func() bool { return false }, Leaked: func() []string { return nil }}),
	})
	get := func(path string) *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		door.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		return answer
	}
	answer := get("/metrics")
	require.Equal(t, http.StatusOK, answer.Code)
	for _, line := range []string{
		`gpuslice_build_info{goversion=`, `version="v1.2.3"} 1`, "\ngpuslice_nri_connected 0\n", `gpuslice_refusals_total{reason="overbooked"} 0`,
		`gpuslice_refusals_total{reason="late"} 1`, `gpuslice_nri_request_duration_seconds_count{event="CreateContainer"} 1`,
		`gpuslice_nri_request_duration_seconds_bucket{event="CreateContainer",le="0.0032"} 1`, "\ngpuslice_grants 3\n", "\ngo_goroutines ", "\nprocess_open_fds ",
	} {
		assert.Contains(t, answer.Body.String(), line)
	}
	answer = get("/api/v1/view")
	require.Equal(t, http.StatusOK, answer.Code)
	assert.Equal(t, "application/json", answer.Header().Get("Content-Type"))
	assert.Contains(t, answer.Body.String(), `"temperatureCelsius":61`)

	failure = errors.New("the ledger is on fire")
	answer = get("/metrics")
	assert.Equal(t, http.StatusOK, answer.Code, "what can be told is told")
	assert.Contains(t, answer.Body.String(), "gpuslice_build_info")
	assert.NotContains(t, answer.Body.String(), "gpuslice_grants")
	assert.Contains(t, get("/metrics").Body.String(), `promhttp_metric_handler_errors_total{cause="gathering"} 1`)
	answer = get("/api/v1/view")
	assert.Equal(t, http.StatusServiceUnavailable, answer.Code)
	assert.Contains(t, answer.Body.String(), "on fire")
	assert.Equal(t, http.StatusNotFound, get("/metric").Code, "gpu-manager's path is told with its names alone")
	door = metrics.NewDoor(metrics.DoorConfig{Registry: prometheus.NewRegistry(), View: read, Gatherer: metrics.NewGatherer(metrics.GathererConfig{
		View: func(context.Context) (view.Node, error) { return busy(), nil }, Connected: func() bool { return false }, Leaked: func() []string { return nil }, Legacy: metrics.Legacies,
	})})
	assert.Contains(t, get("/metric").Body.String(), "container_gpu_memory_total{")
	post := httptest.NewRecorder()
	door.ServeHTTP(post, httptest.NewRequest(http.MethodPost, "/metrics", nil))
	assert.Equal(t, http.StatusMethodNotAllowed, post.Code)
}

// Each look costs a read of the node's files: no more than a few are made at the same time, whoever asks.
func TestDoorAnswersAFewAtATime(t *testing.T) {
	arrived, leave := make(chan struct{}), make(chan struct{})
	wait := func() { arrived <- struct{}{}; <-leave }
	door := metrics.NewDoor(metrics.DoorConfig{
		Registry: prometheus.NewRegistry(), Gatherer: gathererOf(busy()),
		View: func(context.Context) (view.Node, error) { wait(); return busy(), nil },
		Page: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { wait() }),
	})
	get := func(path string) int {
		answer := httptest.NewRecorder()
		door.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		return answer.Code
	}
	for _, path := range []string{"/api/v1/view", "/"} {
		answers := make(chan int)
		for range httpserver.InFlight {
			go func() { answers <- get(path) }()
			<-arrived
		}
		assert.Equal(t, http.StatusServiceUnavailable, get(path), path)
		assert.Equal(t, http.StatusOK, get("/metrics"), "the one doesn't take the other's places")
		for range httpserver.InFlight {
			leave <- struct{}{}
			assert.Equal(t, http.StatusOK, <-answers, path)
		}
	}
}
