package noderegister

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/nvidia"
)

// example is a node of two GPUs.
func example() Node {
	gpu := func(uuid string, index int) Device {
		return Device{
			GPU: nvidia.GPU{
				UUID: uuid, Index: index, Model: "NVIDIA H200", MemoryMiB: 143771, NUMANode: index, ComputeCapability: "9.0",
			},
			Replicas: 10, MemoryMiB: 143771, CorePercent: 100, Healthy: true,
		}
	}
	return Node{
		Devices: []Device{gpu("GPU-b", 1), gpu("GPU-a", 0)},
		Topology: nvidia.Topology{UUIDs: []string{"GPU-a", "GPU-b", "GPU-c"}, Pairs: [][]nvidia.Pair{
			{{}, {Level: nvidia.LevelSwitch, NVLinks: 18}, {}}, {{Level: nvidia.LevelSwitch, NVLinks: 18}, {}, {}}, {{}, {}, {}},
		}},
		DriverVersion: "550.54.15", CUDAVersion: "12.4",
	}
}

// v100s are the GPUs of the examples in HAMi's description of the protocol.
func v100s(numa int) Node {
	gpu := func(uuid string, index int) Device {
		return Device{
			GPU:      nvidia.GPU{UUID: uuid, Index: index, Model: "Tesla V100-PCIE-32GB", NUMANode: numa},
			Replicas: 10, MemoryMiB: 32768, CorePercent: 100, Mode: api.ModeShared, Healthy: true,
		}
	}
	return Node{Devices: []Device{
		gpu("GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec", 0), gpu("GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448", 1),
	}}
}

func TestRegisterIsHAMisExample(t *testing.T) {
	json := Render(v100s(1), Options{}).Annotations[api.AnnotationHAMiRegister]
	assert.Equal(t, `[{"id":"GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec","count":10,"devmem":32768,"devcore":100,"type":"NVIDIA-Tesla V100-PCIE-32GB","numa":1,"mode":"hami-core","health":true},{"id":"GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448","index":1,"count":10,"devmem":32768,"devcore":100,"type":"NVIDIA-Tesla V100-PCIE-32GB","numa":1,"mode":"hami-core","health":true}]`, json)

	csv := Render(v100s(0), Options{CSV: true}).Annotations[api.AnnotationHAMiRegister]
	assert.Equal(t, `GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,0,hami-core:GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,1,hami-core:`, csv)
}

func TestRegisterOmitsZeroes(t *testing.T) {
	n := Node{Devices: []Device{{GPU: nvidia.GPU{UUID: "GPU-a", Model: "NVIDIA H200", NUMANode: nvidia.NUMAUnknown}, Replicas: 1, MemoryMiB: 1, CorePercent: 100}}}
	assert.Equal(t, `[{"id":"GPU-a","count":1,"devmem":1,"devcore":100,"type":"NVIDIA H200","mode":"hami-core"}]`,
		Render(n, Options{}).Annotations[api.AnnotationHAMiRegister])
}

// The kubelet counts a partitioned GPU's devices; a scheduler is not to give them away.
func TestRegisterLeavesPartitionedGPUsOut(t *testing.T) {
	n := v100s(1)
	n.Devices[0].Mode = api.ModeMIG
	got := Render(n, Options{})
	assert.NotContains(t, got.Annotations[api.AnnotationHAMiRegister], n.Devices[0].GPU.UUID)
	assert.Contains(t, got.Annotations[api.AnnotationHAMiRegister], n.Devices[1].GPU.UUID)
	assert.NotContains(t, got.Annotations[api.AnnotationHAMiScore], n.Devices[0].GPU.UUID)
	assert.Equal(t, "2", got.Labels[api.LabelPrefix+"count"], "people see it all the same")
	n.Devices[1].Mode = api.ModeMIG
	assert.NotContains(t, Render(n, Options{}).Annotations, api.AnnotationHAMiRegister)
}

// A reader of each form, by HAMi's grammar, reads the same devices.
func TestRegisterReadsBack(t *testing.T) {
	n := example()
	n.Devices[0].Healthy = false
	n.Devices[0].GPU.Model = "Odd, name: 1"
	n.Devices[1].MemoryMiB = math.MaxInt64 // more than HAMi's number
	var list []api.HAMiGPU
	require.NoError(t, json.Unmarshal([]byte(Render(n, Options{}).Annotations[api.AnnotationHAMiRegister]), &list))
	require.Len(t, list, 2)
	assert.Equal(t, api.HAMiGPU{ID: "GPU-a", Count: 10, Memory: math.MaxInt32, Core: 100, Type: "NVIDIA H200", Mode: "hami-core", Health: true}, list[0])
	assert.Equal(t, api.HAMiGPU{ID: "GPU-b", Index: 1, Count: 10, Memory: 143771, Core: 100, Type: "NVIDIA-Odd, name: 1", NUMA: 1, Mode: "hami-core"}, list[1])

	csv, ended := strings.CutSuffix(Render(n, Options{CSV: true}).Annotations[api.AnnotationHAMiRegister], ":")
	require.True(t, ended)
	for i, text := range strings.Split(csv, ":") {
		fields := strings.Split(text, ",")
		require.Len(t, fields, 9)
		assert.Equal(t, list[i].ID, fields[0])
		assert.Equal(t, strconv.Itoa(int(list[i].Memory)), fields[2])
		assert.Equal(t, strings.NewReplacer(",", "-", ":", "-").Replace(list[i].Type), fields[4])
		assert.Equal(t, strconv.FormatBool(list[i].Health), fields[6])
		assert.Equal(t, strconv.Itoa(list[i].Index), fields[7])
	}
}

func TestScores(t *testing.T) {
	assert.Equal(t, `[{"uuid":"GPU-a","score":{"GPU-b":1850}},{"uuid":"GPU-b","score":{"GPU-a":1850}}]`,
		Render(example(), Options{}).Annotations[api.AnnotationHAMiScore], "of the GPUs that are offered")
	one := example()
	one.Devices = one.Devices[:1]
	assert.Equal(t, `[{"uuid":"GPU-b","score":{}}]`, Render(one, Options{}).Annotations[api.AnnotationHAMiScore])
}

func TestIsolationOfGPUs(t *testing.T) {
	for enforcement, want := range map[string][2]string{"": {"limiter", "limiter"}, "limiter": {"limiter", "limiter"}, "native": {"driver", "limiter"}, "native+limiter": {"driver", "limiter"}} {
		n := example()
		n.MemoryEnforcement = enforcement
		n.Devices[0].MemoryMiB *= 2 // which the driver does not limit
		var got api.NodeGPUs
		require.NoError(t, json.Unmarshal([]byte(Render(n, Options{}).Annotations[api.AnnotationNodeGPUs]), &got))
		assert.Equal(t, want, [2]string{got.GPUs[0].Isolation, got.GPUs[1].Isolation}, enforcement)
	}
}

func TestGPUs(t *testing.T) {
	n := example()
	n.Devices[0].Healthy = false
	n.Devices[1].GPU.NUMANode = nvidia.NUMAUnknown
	assert.Equal(t, `{"version":1,"gpus":[`+
		`{"uuid":"GPU-a","model":"NVIDIA H200","index":0,"memoryMiB":143771,"cores":100,"replicas":10,"mode":"hami-core","healthy":true,"isolation":"limiter"},`+
		`{"uuid":"GPU-b","model":"NVIDIA H200","index":1,"numa":1,"memoryMiB":143771,"cores":100,"replicas":10,"mode":"hami-core","healthy":false,"isolation":"limiter"}],`+
		`"links":[[0,1850],[1850,0]]}`, Render(n, Options{}).Annotations[api.AnnotationNodeGPUs])

	n.Topology = nvidia.Topology{}
	assert.NotContains(t, Render(n, Options{}).Annotations[api.AnnotationNodeGPUs], "links", "unknown topology")
	n.Devices[0].Mode = api.ModeMIG
	n.Devices[1].Mode = api.ModeMIG
	assert.NotContains(t, Render(n, Options{}).Annotations, api.AnnotationNodeGPUs, "the kubelet counts the parts of a partitioned GPU")
}

func TestRenderNoDevice(t *testing.T) {
	assert.Empty(t, Render(Node{}, Options{}).Annotations, "no device")
	assert.Equal(t, map[string]string{api.LabelPrefix + "count": "0"}, Render(Node{}, Options{TencentModel: true}).Labels)
}

func TestAnswer(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 4, 5, 0, time.Local)
	const answered = "Reported_2026-11-21 10:04:05"
	devices := Metadata{Annotations: map[string]string{api.AnnotationHAMiRegister: "[…]"}}
	volcano := Metadata{Annotations: map[string]string{api.AnnotationVolcanoRegister: "…"}}
	for name, c := range map[string]struct {
		volcano bool
		current string
		devices Metadata
		leaving bool
		want    string // empty: nothing is written
	}{
		"asked":                     {current: "Requesting_2026-11-21 10:00:00", devices: devices, want: answered},
		"asked by an old scheduler": {current: "Requesting_2026.11.21 10:00:00", devices: devices, want: answered},
		"dropped":                   {current: "Deleted_2026-11-21 10:00:00", devices: devices, want: answered},
		"after our own leave":       {current: overdue, devices: devices, want: answered},
		"no request":                {current: "", devices: devices},
		"answered":                  {current: answered, devices: devices},
		"no devices":                {current: "Requesting_2026-11-21 10:00:00"},
		"Volcano's, asked":          {volcano: true, current: "Requesting_2026.11.21 10:00:00", devices: volcano, want: answered},
		"Volcano's, no request":     {volcano: true, devices: volcano, want: answered},
		"Volcano's, answered":       {volcano: true, current: answered, devices: volcano},
		"Volcano's, no devices":     {volcano: true, devices: devices},
		"Volcano's, leaving":        {volcano: true, leaving: true, current: answered, devices: volcano, want: overdue},
		"Volcano's, never asked":    {volcano: true, leaving: true, devices: volcano},
		"leaving, asked":            {leaving: true, current: "Requesting_2026-11-21 10:00:00", devices: devices, want: overdue},
		"leaving, answered":         {leaving: true, current: answered, devices: devices, want: overdue},
		"leaving, dropped already":  {leaving: true, current: "Deleted_2026-11-21 10:00:00", devices: devices},
		"leaving a second time":     {leaving: true, current: overdue, devices: devices},
		"leaving, no request":       {leaving: true, devices: devices},
	} {
		t.Run(name, func(t *testing.T) {
			h := handshakes[0]
			if c.volcano {
				h = handshakes[1]
			}
			got, write := h.answer(c.current, c.devices, c.leaving, now)
			assert.Equal(t, c.want != "", write)
			if write {
				assert.Equal(t, c.want, got)
			}
		})
	}
}

// What makes old schedulers drop a node at once is a question of long ago, in a form
// that those that look at the time can read.
func TestOverdueIsReadable(t *testing.T) {
	_, stamp, _ := strings.Cut(overdue, "_")
	then, err := time.ParseInLocation(time.DateTime, stamp, time.Local)
	require.NoError(t, err)
	assert.Equal(t, 1970, then.Year())
}

func TestLabelsOfANode(t *testing.T) {
	want := map[string]string{
		"count": "2", "model": "NVIDIA-H200", "model.NVIDIA-H200": "2", "memory": "143771", "replicas": "10", "mode": "hami-core",
		"driver-version": "550.54.15", "driver-version.major": "550", "driver-version.minor": "54",
		"cuda-version": "12.4", "cuda-version.major": "12", "cuda-version.minor": "4",
		"compute-capability": "9.0", "compute-capability.major": "9", "compute-capability.minor": "0",
		"nvlink": "all", "mig.enabled": "false", "mig.strategy": "none",
	}
	assert.Equal(t, want, trimmed(t, Render(example(), Options{}).Labels))

	n := example()
	n.Devices[0].Healthy = false
	n.Devices[0].MemoryMiB, n.Devices[0].CorePercent = 1, 1
	assert.Equal(t, want, trimmed(t, Render(n, Options{}).Labels), "labels are of the GPUs, not of their health or scaling")
}

func TestLabelsOfMixedGPUs(t *testing.T) {
	n := example()
	t4 := Device{GPU: nvidia.GPU{UUID: "GPU-c", Index: 2, Model: "Tesla T4", MemoryMiB: 15360, ComputeCapability: "7.5", MIGEnabled: false}, Replicas: 4}
	n.Devices[0].GPU.MIGEnabled = true
	n.Devices[0].GPU.MIG = []nvidia.MIGDevice{{Profile: "1g.18gb"}, {Profile: "1g.18gb"}, {Profile: "1g.18gb+me"}}
	n.Devices[0].Mode = api.ModeMIG
	n.Devices = append(n.Devices, t4)
	n.MIGStrategy = nvidia.MIGMixed
	got := trimmed(t, Render(n, Options{TencentModel: true}).Labels)
	for key, want := range map[string]string{
		"count": "3", "model": "mixed", "model.NVIDIA-H200": "2", "model.Tesla-T4": "1", "memory": "15360", "replicas": "4", "mode": "mixed",
		"compute-capability": "7.5", "nvlink": "some", "mig.enabled": "mixed", "mig.strategy": "mixed", "mig-1g.18gb": "2", "mig-1g.18gb.me": "1",
	} {
		assert.Equal(t, want, got[key], key)
	}
	assert.NotContains(t, got, "mig.capable")
	assert.NotContains(t, got, api.LabelTencentModel, "no model is right for all")

	n.Devices[2].GPU.ComputeCapability = ""
	assert.NotContains(t, Render(n, Options{}).Labels, api.LabelPrefix+"compute-capability")

	n.Devices = n.Devices[:1]
	got = trimmed(t, Render(n, Options{}).Labels)
	assert.Equal(t, "true", got["mig.capable"])
	assert.Equal(t, "none", got["nvlink"], "a single GPU has nothing to be linked with")
}

// trimmed are labels without our prefix. All are valid.
func trimmed(t *testing.T, labels map[string]string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for key, value := range labels {
		assert.Empty(t, validation.IsQualifiedName(key), key)
		assert.Empty(t, validation.IsValidLabelValue(value), "%s=%s", key, value)
		out[strings.TrimPrefix(key, api.LabelPrefix)] = value
	}
	return out
}

func TestOddModelsMakeValidLabels(t *testing.T) {
	for model, want := range map[string]string{
		"":                                    "",
		"NVIDIA  H200":                        "NVIDIA-H200",
		"NVIDIA A100-SXM4-80GB":               "NVIDIA-A100-SXM4-80GB",
		"(engineering sample)":                "engineering-sample",
		"é\x00½":                              "",
		"..--":                                "",
		"- H200 -":                            "H200",
		"a" + strings.Repeat("-", 80) + "b":   "a",
		"x" + strings.Repeat("é", 80):         "x",
		strings.Repeat("GPU ", 30):            strings.TrimSuffix(strings.Repeat("GPU-", 15), "-") + "-GPU",
		"NVIDIA RTX 6000 Ada Generation/2 ®™": "NVIDIA-RTX-6000-Ada-Generation-2",
	} {
		got := labelValue(model)
		assert.Equal(t, want, got, "%q", model)
		n := example()
		for i := range n.Devices {
			n.Devices[i].GPU.Model = model
		}
		labels := Render(n, Options{TencentModel: true}).Labels
		trimmed(t, labels)
		if want == "" {
			assert.NotContains(t, labels, api.LabelPrefix+"model")
		}
	}
}

func TestTencentModel(t *testing.T) {
	for name, want := range map[string]string{
		"Tesla M40 24GB": "M40", "Tesla P40": "P40", "NVIDIA H200": "H200", "H200": "H200",
		"GeForce RTX 2080": "RTX-2080", "NVIDIA GeForce RTX 3090 Ti": "RTX-3090-Ti", "GeForce GTX 1080 Ti": "GTX-1080-Ti",
		"NVIDIA A100-SXM4-80GB": "A100", "Tesla V100-SXM2-32GB": "V100", "NVIDIA H100 80GB HBM3": "H100", "NVIDIA H100 PCIe": "H100",
		"NVIDIA GH200 480GB": "GH200", "Quadro RTX 8000": "RTX-8000", "Quadro P5000": "P5000", "TITAN V": "TITAN-V",
		"NVIDIA RTX A6000": "RTX-A6000", "nvidia rtx 4090 24gb": "rtx-4090", "NVIDIA": "NVIDIA", "": "",
	} {
		assert.Equal(t, want, tencentModel(name), "%q", name)
	}
	assert.Equal(t, "H200", Render(example(), Options{TencentModel: true}).Labels[api.LabelTencentModel])
}

func TestVersionsThatAreNone(t *testing.T) {
	n := Node{DriverVersion: "beta", CUDAVersion: "13"}
	assert.Equal(t, map[string]string{"count": "0", "driver-version": "beta", "cuda-version": "13", "cuda-version.major": "13"},
		trimmed(t, Render(n, Options{}).Labels))
}

// What another manager wrote is never taken for ours.
func FuzzOwnedBy(f *testing.F) {
	f.Add([]byte(`{"f:metadata":{"f:annotations":{"f:gpuslice.io/node-gpus":{},".":{}},"f:labels":{"f:a":{}}}}`), "us", "")
	f.Add([]byte(`{"f:metadata":[]}`), "them", "status")
	f.Fuzz(func(t *testing.T, fields []byte, manager, subresource string) {
		owned := ownedBy([]metav1.ManagedFieldsEntry{{Manager: manager, Subresource: subresource, FieldsV1: metav1.NewFieldsV1(string(fields))}}, "us")
		if manager != "us" || subresource != "" {
			require.Empty(t, owned.labels)
			require.Empty(t, owned.annotations)
		}
		require.NotContains(t, owned.annotations, ".")
	})
}
