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
	m.Took("extender", "filter", time.Now(), nil)
	m.Took("extender", "filter", time.Now(), errors.New("no"))
	m.Denied("extender", "CardInsufficientMemory")
	m.Prevented("plugin")
	m.Reviewed("/mutate", "denied", "forged", time.Millisecond)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(m))
	require.NoError(t, registry.Register(Engine(e)))
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP gpuslice_scheduler_bookings_total Bookings by their end: made, repeated (asked for again), refused (no room on the newest state: a double booking that was not made), expired (never bound).
# TYPE gpuslice_scheduler_bookings_total counter
gpuslice_scheduler_bookings_total{end="expired"} 0
gpuslice_scheduler_bookings_total{end="made"} 1
gpuslice_scheduler_bookings_total{end="refused"} 0
gpuslice_scheduler_bookings_total{end="repeated"} 0
# HELP gpuslice_scheduler_gpu_booked_ratio Part of a GPU that is booked, 0 to 1, by what of it.
# TYPE gpuslice_scheduler_gpu_booked_ratio gauge
gpuslice_scheduler_gpu_booked_ratio{node="n",of="cores",uuid="GPU-00000000-0000-4000-8000-000000000000"} 0.5
gpuslice_scheduler_gpu_booked_ratio{node="n",of="memory",uuid="GPU-00000000-0000-4000-8000-000000000000"} 0.25
gpuslice_scheduler_gpu_booked_ratio{node="n",of="slots",uuid="GPU-00000000-0000-4000-8000-000000000000"} 0.1
# HELP gpuslice_scheduler_denials_total Pods that no node could take, by the reason that most nodes gave.
# TYPE gpuslice_scheduler_denials_total counter
gpuslice_scheduler_denials_total{door="extender",reason="CardInsufficientMemory"} 1
# HELP gpuslice_scheduler_double_bookings_prevented_total Bookings of GPUs that were refused, for another pod was faster.
# TYPE gpuslice_scheduler_double_bookings_prevented_total counter
gpuslice_scheduler_double_bookings_prevented_total{door="plugin"} 1
# HELP gpuslice_scheduler_fragmented_pods Of the pending pods, those that wait for memory that is free, but not on one GPU.
# TYPE gpuslice_scheduler_fragmented_pods gauge
gpuslice_scheduler_fragmented_pods 0
# HELP gpuslice_scheduler_pending_pods Pods that ask for GPUs and are on no node, by the reason that most nodes give as the GPUs are now; Fits: a node has room; Reserved: being bound.
# TYPE gpuslice_scheduler_pending_pods gauge
gpuslice_scheduler_pending_pods{reason="CardInsufficientMemory"} 1
# HELP gpuslice_scheduler_reservations Pods whose GPUs are reserved and that are not bound yet.
# TYPE gpuslice_scheduler_reservations gauge
gpuslice_scheduler_reservations 1
`), "gpuslice_scheduler_bookings_total", "gpuslice_scheduler_gpu_booked_ratio", "gpuslice_scheduler_denials_total",
		"gpuslice_scheduler_double_bookings_prevented_total", "gpuslice_scheduler_reservations",
		"gpuslice_scheduler_pending_pods", "gpuslice_scheduler_fragmented_pods"))
	count, err := testutil.GatherAndCount(registry, "gpuslice_scheduler_verb_duration_seconds", "gpuslice_scheduler_admission_total")
	require.NoError(t, err)
	require.Equal(t, 4, count)
}
