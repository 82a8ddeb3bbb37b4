package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/quota"
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

const hamiTestGPU = "GPU-00000000-0000-4000-8000-000000000000"

// Each HAMi metric has the engine's value in HAMi's unit, also for two pods of one name.
func TestHAMi(t *testing.T) {
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(t, err)
	e.SetNode(&scheduler.Node{Name: "n", Annotations: map[string]string{"hami.io/node-nvidia-register": `[{"id":"` + hamiTestGPU + `","count":10,"devmem":1000,"devcore":200,"type":"NVIDIA A","index":3,"health":true}]`}})
	for _, uid := range []string{"u", "v"} {
		p := &scheduler.Pod{UID: uid, Namespace: "d", Name: "p", Containers: []scheduler.Container{{Name: "side"}, {Name: "c", Resources: map[string]scheduler.Amount{
			"nvidia.com/gpu": {Value: 1}, "nvidia.com/gpumem": {Value: 250}, "nvidia.com/gpucores": {Value: 25}}}}}
		r, err := e.Request(p)
		require.NoError(t, err)
		_, err = e.Reserve(p, r, "n", "test")
		require.NoError(t, err)
	}
	e.SetQuota("d", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 8000, Cores: quota.Unlimited}})
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(HAMi(e)))
	families, err := registry.Gather()
	require.NoError(t, err)
	values, labels := map[string]float64{}, map[string]string{}
	for _, f := range families {
		require.Len(t, f.Metric, 1, f.GetName())
		values[f.GetName()] = f.Metric[0].GetGauge().GetValue()
		labels[f.GetName()] = words(f.Metric[0])
	}
	const mib = 1 << 20
	assert.Equal(t, map[string]float64{
		"hami_gpu_memory_limit_bytes": 1000 * mib, "GPUDeviceMemoryLimit": 1000 * mib,
		"hami_gpu_core_limit_ratio": 100, "GPUDeviceCoreLimit": 200,
		"hami_gpu_memory_allocated_bytes": 500 * mib, "GPUDeviceMemoryAllocated": 500 * mib,
		"hami_gpu_shared_count": 2, "GPUDeviceSharedNum": 2,
		"hami_gpu_core_allocated_ratio": 25, "GPUDeviceCoreAllocated": 50,
		"hami_node_gpu_overview": 500 * mib, "nodeGPUOverview": 500 * mib,
		"hami_node_gpu_memory_allocated_ratio": 0.5, "nodeGPUMemoryPercentage": 0.5,
		"hami_vgpu_memory_allocated_bytes": 500 * mib, "vGPUMemoryAllocated": 500 * mib,
		"hami_resource_quota_used": 500, "QuotaUsed": 500, "hami_resource_quota_limit": 8000,
		"hami_vgpu_core_allocated_ratio": 25, "vGPUCoreAllocated": 50,
	}, values)
	assert.Equal(t, "device_cores=200 device_index=3 device_memory_limit=1000 device_type=NVIDIA A device_uuid="+hamiTestGPU+" node=n zone=vGPU", labels["hami_node_gpu_overview"])
	assert.Equal(t, "containeridx=1 deviceuuid="+hamiTestGPU+" nodename=n podname=p podnamespace=d zone=vGPU", labels["vGPUMemoryAllocated"])

	assert.Equal(t, "limit=8000 namespace=d quota_name=nvidia.com/gpumem zone=vGPU", labels["hami_resource_quota_used"])
	assert.Equal(t, "limit=8000 quotaName=nvidia.com/gpumem quotanamespace=d zone=vGPU", labels["QuotaUsed"])

	require.NoError(t, registry.Register(Engine(e)), "beside our own")
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP gpuslice_scheduler_gpu_reserved_ratio Reserved part of a GPU, 0 to 1, by resource: memory, cores or replicas.
# TYPE gpuslice_scheduler_gpu_reserved_ratio gauge
gpuslice_scheduler_gpu_reserved_ratio{node="n",of="cores",uuid="`+hamiTestGPU+`"} 0.25
gpuslice_scheduler_gpu_reserved_ratio{node="n",of="memory",uuid="`+hamiTestGPU+`"} 0.5
gpuslice_scheduler_gpu_reserved_ratio{node="n",of="replicas",uuid="`+hamiTestGPU+`"} 0.2
# HELP gpuslice_scheduler_quota_memory_limit_bytes GPU memory that the ResourceQuotas of a namespace allow.
# TYPE gpuslice_scheduler_quota_memory_limit_bytes gauge
gpuslice_scheduler_quota_memory_limit_bytes{namespace="d"} 8.388608e+09
# HELP gpuslice_scheduler_quota_memory_used_bytes GPU memory that pods of a namespace with a ResourceQuota for it have reserved.
# TYPE gpuslice_scheduler_quota_memory_used_bytes gauge
gpuslice_scheduler_quota_memory_used_bytes{namespace="d"} 5.24288e+08
`), "gpuslice_scheduler_gpu_reserved_ratio", "gpuslice_scheduler_quota_memory_limit_bytes", "gpuslice_scheduler_quota_memory_used_bytes", "gpuslice_scheduler_quota_cores_limit_ratio"))
}

func words(m *dto.Metric) string {
	var all []string
	for _, l := range m.Label {
		all = append(all, l.GetName()+"="+l.GetValue())
	}
	return strings.Join(all, " ")
}
