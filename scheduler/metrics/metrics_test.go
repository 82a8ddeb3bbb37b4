package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

func TestMetrics(t *testing.T) {
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(t, err)
	e.SetNode(&scheduler.Node{Name: "n", Annotations: map[string]string{"hami.io/node-nvidia-register": `[{"id":"GPU-00000000-0000-4000-8000-000000000000","count":10,"devmem":1000,"devcore":100,"type":"NVIDIA","health":true}]`}})
	p := &scheduler.Pod{UID: "u", Namespace: "d", Name: "p", Containers: []scheduler.Container{{Name: "c", Resources: map[string]scheduler.Amount{
		"nvidia.com/gpu": {Value: 1}, "nvidia.com/gpumem": {Value: 250}, "nvidia.com/gpucores": {Value: 50}}}}}
	r, err := e.Request(p)
	require.NoError(t, err)
	_, err = e.Reserve(p, r, "n", "test")
	require.NoError(t, err)

	waits := *p
	waits.UID, waits.Name, waits.Containers = "w", "w", []scheduler.Container{{Name: "c", Resources: map[string]scheduler.Amount{
		"nvidia.com/gpu": {Value: 1}, "nvidia.com/gpumem": {Value: 900}}}}
	e.SetPod(&waits)
	m := New()
	m.Observe("extender", "filter", time.Now(), nil)
	m.Observe("extender", "filter", time.Now(), errors.New("no"))
	m.Denied("extender", "CardInsufficientMemory")
	m.Conflict("plugin")
	m.Reviewed("/mutate", "denied", "forged", time.Millisecond)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(m))
	require.NoError(t, registry.Register(Engine(e)))
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP gpuslice_scheduler_reservations_total GPU reservations by outcome: created, repeated (the same pod again), refused (no GPU left), expired (not bound in time).
# TYPE gpuslice_scheduler_reservations_total counter
gpuslice_scheduler_reservations_total{outcome="expired"} 0
gpuslice_scheduler_reservations_total{outcome="created"} 1
gpuslice_scheduler_reservations_total{outcome="refused"} 0
gpuslice_scheduler_reservations_total{outcome="repeated"} 0
# HELP gpuslice_scheduler_gpu_reserved_ratio Reserved part of a GPU, 0 to 1, by resource: memory, cores or replicas.
# TYPE gpuslice_scheduler_gpu_reserved_ratio gauge
gpuslice_scheduler_gpu_reserved_ratio{node="n",of="cores",uuid="GPU-00000000-0000-4000-8000-000000000000"} 0.5
gpuslice_scheduler_gpu_reserved_ratio{node="n",of="memory",uuid="GPU-00000000-0000-4000-8000-000000000000"} 0.25
gpuslice_scheduler_gpu_reserved_ratio{node="n",of="replicas",uuid="GPU-00000000-0000-4000-8000-000000000000"} 0.1
# HELP gpuslice_scheduler_denials_total Scheduling attempts of pods that fit on no node, by the most frequent reason among the nodes.
# TYPE gpuslice_scheduler_denials_total counter
gpuslice_scheduler_denials_total{component="extender",reason="CardInsufficientMemory"} 1
# HELP gpuslice_scheduler_reservation_conflicts_total GPU reservations that were rejected because another pod had taken the GPU.
# TYPE gpuslice_scheduler_reservation_conflicts_total counter
gpuslice_scheduler_reservation_conflicts_total{component="plugin"} 1
# HELP gpuslice_scheduler_fragmented_pods Pending pods that wait for memory that is free, but not on one GPU.
# TYPE gpuslice_scheduler_fragmented_pods gauge
gpuslice_scheduler_fragmented_pods 0
# HELP gpuslice_scheduler_pending_pods Pods that request GPUs and are on no node, by the most frequent reason among the nodes. Fits: the pod fits on a node. Reserved: the pod is being bound.
# TYPE gpuslice_scheduler_pending_pods gauge
gpuslice_scheduler_pending_pods{reason="CardInsufficientMemory"} 1
# HELP gpuslice_scheduler_reserved_pods Pods that have reserved GPUs and are not bound yet.
# TYPE gpuslice_scheduler_reserved_pods gauge
gpuslice_scheduler_reserved_pods 1
`), "gpuslice_scheduler_reservations_total", "gpuslice_scheduler_gpu_reserved_ratio", "gpuslice_scheduler_denials_total",
		"gpuslice_scheduler_reservation_conflicts_total", "gpuslice_scheduler_reserved_pods",
		"gpuslice_scheduler_pending_pods", "gpuslice_scheduler_fragmented_pods"))
	count, err := testutil.GatherAndCount(registry, "gpuslice_scheduler_verb_duration_seconds", "gpuslice_scheduler_admission_total")
	require.NoError(t, err)
	require.Equal(t, 4, count)
}
