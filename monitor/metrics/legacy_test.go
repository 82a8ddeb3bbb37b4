package metrics_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/metrics"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// series are numbers by name and labels.
type series map[string]map[string]float64

// key is the values of some labels.
func key(m *dto.Metric, names ...string) string {
	text := ""
	for _, name := range names {
		for _, l := range m.Label {
			if l.GetName() == name {
				text += l.GetValue() + "|"
			}
		}
	}
	return text
}

func gathered(t *testing.T, node view.Node, by map[string][]string, legacy ...metrics.Legacy) series {
	families, err := registryOf(reads(node), legacy...).Gather()
	require.NoError(t, err)
	all := series{}
	for _, f := range families {
		all[f.GetName()] = map[string]float64{}
		for _, m := range f.Metric {
			all[f.GetName()][key(m, by[f.GetName()]...)] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// shared is a node with containers that have several GPUs and a MIG device each.
func shared() view.Node {
	n := busy()
	worked := time.Now().Add(-time.Minute)
	n.GPUs = append(n.GPUs, view.GPU{UUID: "MIG-1", Index: 1, Model: "A100 MIG 1g.5gb", MIGProfile: "1g.5gb", MIG: &view.MIG{GPU: nodetest.T4, GPUInstance: 9, ComputeInstance: 0}})
	n.Containers = append(n.Containers,
		view.Container{ContainerID: "c5", Pod: "ml/both", Name: "main", State: "active", CreatedAt: nodetest.Time.Add(time.Second), Shares: []view.Share{
			{UUID: nodetest.H200, MemoryMiB: 1000, CorePercent: 25, UsedBytes: 300, ContextBytes: 100, LastLaunch: worked, CoreUsedPercent: pointer(20.0)},
			{UUID: "MIG-1", MemoryMiB: 500, UsedBytes: 200, ContextBytes: 900},
		}},
		// An attempt of it that is older, and one that has ended: Prometheus accepts one number per name and labels.
		view.Container{ContainerID: "c6", Pod: "ml/both", Name: "main", State: "active", CreatedAt: nodetest.Time, Shares: []view.Share{{UUID: nodetest.H200, MemoryMiB: 7}}},
		view.Container{ContainerID: "c7", Pod: "ml/both", Name: "main", State: "released", CreatedAt: nodetest.Time.Add(time.Minute), Shares: []view.Share{{UUID: nodetest.H200, MemoryMiB: 8}}},
	)
	return n
}

// instances is a node with a container that has two MIG devices of one GPU, and two of GPUs that are gone.
func instances() view.Node {
	n := shared()
	mig := n.GPUs[len(n.GPUs)-1]
	mig.UUID = "MIG-2"
	n.GPUs = append(n.GPUs, mig)
	n.Containers = append(n.Containers, view.Container{ContainerID: "c8", Pod: "ml/two", Name: "main", State: "active", CreatedAt: nodetest.Time, Shares: []view.Share{
		{UUID: "MIG-1", UsedBytes: 200 << 20}, {UUID: "MIG-2", UsedBytes: 300 << 20}, {UUID: "GPU-gone"}, {UUID: "GPU-gone-too"},
	}})
	return n
}

// gpu-manager has no MIG devices: those of one GPU are one.
func TestAliasesOfMIGDevices(t *testing.T) {
	families, err := registryOf(reads(instances()), metrics.GPUManager).Gather()
	require.NoError(t, err)
	used := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			of := map[string]string{}
			for _, l := range m.Label {
				of[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "container_gpu_memory_total" && of["pod_name"] == "two" {
				used[of["gpu_memory"]] = m.GetGauge().GetValue()
			}
		}
	}
	assert.Equal(t, map[string]float64{"gpu1": 500, "gpuGPU-gone": 0, "gpuGPU-gone-too": 0, "total": 500}, used)
}

// Each alias has the value of its original, in its own unit.
func TestAliases(t *testing.T) {
	const (
		percent = 100
		mib     = 1 << 20
	)
	ourGPU, hamiGPU, oldGPU := []string{"index", "uuid"}, []string{"device_index", "device_uuid"}, []string{"deviceidx", "deviceuuid"}
	ourShare := []string{"namespace", "pod", "container", "uuid"}
	hamiShare, oldShare := []string{"namespace", "pod", "container", "device_uuid"}, []string{"podnamespace", "podname", "ctrname", "deviceuuid"}
	for _, test := range []struct {
		alias  string
		labels []string
		ours   string
		of     []string
		factor float64
	}{
		{"hami_host_gpu_memory_used_bytes", hamiGPU, "gpuslice_gpu_memory_used_bytes", ourGPU, 1},
		{"hami_host_gpu_utilization_ratio", hamiGPU, "gpuslice_gpu_utilization_ratio", ourGPU, percent},
		{"HostGPUMemoryUsage", oldGPU, "gpuslice_gpu_memory_used_bytes", ourGPU, 1},
		{"HostCoreUtilization", oldGPU, "gpuslice_gpu_utilization_ratio", ourGPU, percent},
		{"hami_vgpu_memory_used_bytes", hamiShare, "gpuslice_container_memory_used_bytes", ourShare, 1},
		{"hami_vgpu_memory_limit_bytes", hamiShare, "gpuslice_container_memory_limit_bytes", ourShare, 1},
		{"hami_container_device_memory_bytes", hamiShare, "gpuslice_container_memory_used_bytes", ourShare, 1},
		{"hami_container_device_utilization_ratio", hamiShare, "gpuslice_container_core_used_ratio", ourShare, percent},
		{"hami_vgpu_memory_module_bytes", hamiShare, "gpuslice_container_memory_residue_bytes", ourShare, 1},
		{"vGPU_device_memory_usage_in_bytes", oldShare, "gpuslice_container_memory_used_bytes", ourShare, 1},
		{"vGPU_device_memory_limit_in_bytes", oldShare, "gpuslice_container_memory_limit_bytes", ourShare, 1},
		{"Device_memory_desc_of_container", oldShare, "gpuslice_container_memory_used_bytes", ourShare, 1},
		{"Device_utilization_desc_of_container", oldShare, "gpuslice_container_core_used_ratio", ourShare, percent},
	} {
		t.Run(test.alias, func(t *testing.T) {
			alias := gathered(t, shared(), map[string][]string{test.alias: test.labels}, metrics.HAMi)[test.alias]
			one := shared() // attempt of each container
			one.Containers = one.Containers[:len(one.Containers)-2]
			ours := gathered(t, one, map[string][]string{test.ours: test.of})[test.ours]
			require.NotEmpty(t, alias)
			for of, value := range alias {
				require.Contains(t, ours, of)
				assert.InDelta(t, ours[of]*test.factor, value, 1e-6, of)
			}
		})
	}
	both := map[string]string{"h200": "ml|both|main|" + nodetest.H200 + "|", "mig": "ml|both|main|MIG-1|"}
	by := map[string][]string{}
	for _, name := range []string{"hami_container_last_kernel_elapsed_seconds", "hami_vgpu_memory_context_bytes", "hami_vgpu_memory_buffer_bytes", "hami_vgpu_memory_used_bytes"} {
		by[name] = hamiShare
	}
	by["Device_last_kernel_of_container"] = oldShare
	by["hami_mig_device_info"] = []string{"pod", "vdevice_index", "device_uuid", "mig_uuid", "profile", "gpu_instance_id", "compute_instance_id", "zone"}
	by["MigInfo"] = []string{"podname", "vdeviceid", "deviceuuid", "instanceid", "zone"}
	by["Device_memory_desc_of_container"] = []string{"podname", "context", "module", "data", "offset"}
	by["hami_host_gpu_memory_controller_utilization_ratio"] = hamiGPU
	var all series
	synctest.Test(t, func(t *testing.T) { all = gathered(t, shared(), by, metrics.HAMi) }) // at one moment
	assert.Equal(t, 60.0, all["hami_container_last_kernel_elapsed_seconds"][both["h200"]], "of a container that worked a minute ago")
	assert.Equal(t, 60.0, all["Device_last_kernel_of_container"][both["h200"]])
	assert.NotContains(t, all["hami_container_last_kernel_elapsed_seconds"], both["mig"], "it never worked")
	assert.Equal(t, 100.0, all["hami_vgpu_memory_context_bytes"][both["h200"]])
	assert.Equal(t, 200.0, all["hami_vgpu_memory_buffer_bytes"][both["h200"]])
	assert.Zero(t, all["hami_vgpu_memory_buffer_bytes"][both["mig"]], "its parts are more than the whole: a container may write that")
	assert.Equal(t, map[string]float64{"both|1|" + nodetest.T4 + "|MIG-1|1g.5gb|9|0|vGPU|": 1}, all["hami_mig_device_info"])
	assert.Equal(t, map[string]float64{"both|1|" + nodetest.T4 + "|9|vGPU|": 1}, all["MigInfo"])
	assert.Contains(t, all["Device_memory_desc_of_container"], "both|100|0|200|0|")
	assert.Equal(t, map[string]float64{"0|" + nodetest.H200 + "|": 43}, all["hami_host_gpu_memory_controller_utilization_ratio"])
	assert.NotContains(t, all, "container_gpu_utilization", "gpu-manager's names were not requested")

	n := shared()
	by = map[string][]string{
		"container_gpu_utilization": {"namespace", "pod_name", "container_name", "gpu"}, "container_gpu_memory_total": {"namespace", "pod_name", "container_name", "gpu_memory"},
		"container_request_gpu_utilization": {"namespace", "pod_name", "container_name", "req_of_gpu"}, "container_request_gpu_memory": {"namespace", "pod_name", "container_name", "req_of_gpu_memory"},
	}
	of := func(name string) map[string]float64 { return gathered(t, n, by, metrics.GPUManager)[name] }
	assert.Equal(t, map[string]float64{"ml|both|main|gpu0|": 20, "ml|both|main|total|": 20, "ml|train|main|gpu0|": 12.5, "ml|train|main|total|": 12.5}, of("container_gpu_utilization"))
	assert.InDelta(t, 500.0/mib, of("container_gpu_memory_total")["ml|both|main|total|"], 1e-9)
	assert.InDelta(t, 200.0/mib, of("container_gpu_memory_total")["ml|both|main|gpu1|"], 1e-9)
	assert.InDelta(t, 1.25, of("container_request_gpu_utilization")["ml|both|main|total|"], 1e-9, "a quarter of a GPU, and a whole MIG device")
	assert.InDelta(t, 1500, of("container_request_gpu_memory")["ml|both|main|total|"], 1e-9)
	n.Containers[4].Shares[0].UsedBytes = math.MaxUint64
	assert.InEpsilon(t, float64(math.MaxUint64)/mib, of("container_gpu_memory_total")["ml|both|main|total|"], 1e-9)
	assert.NotContains(t, gathered(t, n, by, metrics.GPUManager), "HostGPUMemoryUsage")
}

// With all aliases the node's metrics are still ones that Prometheus accepts.
func TestAliasesAreWellFormed(t *testing.T) {
	for _, node := range []view.Node{shared(), instances(), busy(), {Name: "n"}} {
		families, err := registryOf(reads(node), metrics.Legacies...).Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.Metric {
				for i := 1; i < len(m.Label); i++ {
					assert.Less(t, m.Label[i-1].GetName(), m.Label[i].GetName(), f.GetName())
				}
			}
		}
	}
}
