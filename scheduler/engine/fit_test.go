package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
)

// with is the GPU after some changes.
func with(c scheduler.GPU, changes ...func(*scheduler.GPU)) scheduler.GPU {
	for _, change := range changes {
		change(&c)
	}
	return c
}

func sick(c *scheduler.GPU)     { c.Healthy = false }
func cordoned(c *scheduler.GPU) { c.Cordoned = true }
func mig(c *scheduler.GPU)      { c.Mode = "mig" }
func a100(c *scheduler.GPU)     { c.Model = "NVIDIA A100-SXM4-40GB"; c.MemoryMiB = 40000 }

// TestReasons has one node with one or two GPUs, some pods on it, and the result for one more.
func TestReasons(t *testing.T) {
	gpu := func(changes ...func(*scheduler.GPU)) []scheduler.GPU {
		return []scheduler.GPU{with(h100(0, 0), changes...)}
	}
	for _, tc := range []struct {
		name        string
		gpus        []scheduler.GPU
		before      []string
		pod         []string
		annotations map[string]string
		want        Code
		text        string
	}{
		{"not healthy", gpu(sick, cordoned), nil, []string{"1/1000/0"}, nil, CardNotHealth, "1 GPU: 1 not healthy"},
		{"cordoned", gpu(cordoned, a100), nil, []string{"1/1000/0"}, map[string]string{"nvidia.com/use-gputype": "H100"}, GPUCordoned, "1 GPU: 1 cordoned"},
		{"type", gpu(a100), nil, []string{"1/99999/0"}, map[string]string{"nvidia.com/use-gputype": "h100"}, CardTypeMismatch,
			"1 GPU: 1 of another type (NVIDIA A100-SXM4-40GB)"},
		{"type to avoid", gpu(), nil, []string{"1/1/0"}, map[string]string{"nvidia.com/nouse-gputype": "a100,h100"}, CardTypeMismatch,
			"1 GPU: 1 of another type (NVIDIA H100 80GB HBM3)"},
		{"mode", gpu(), nil, []string{"1/1/0"}, map[string]string{"nvidia.com/vgpu-mode": "mps"}, CardTypeMismatch, "1 GPU: 1 of another type (mode hami-core)"},
		{"MIG", gpu(mig), nil, []string{"1/1/0"}, nil, GPUMIGMode, "1 GPU: 1 in MIG mode, which is not shared"},
		{"no memory", gpu(func(c *scheduler.GPU) { c.MemoryMiB = 0 }), nil, []string{"1/-100/0"}, nil, GPUEmpty,
			"1 GPU: 1 registered without memory or without replicas"},
		{"no replicas", gpu(func(c *scheduler.GPU) { c.Replicas = 0 }), nil, []string{"1/1/0"}, nil, GPUEmpty, "1 GPU: 1 registered without memory or without replicas"},
		{"one without memory beside another", []scheduler.GPU{with(h100(0, 0), func(c *scheduler.GPU) { c.MemoryMiB = 0 }), h100(0, 1)}, nil, []string{"1/-50/0"}, nil, OK, "fits"},
		{"uuid", gpu(), nil, []string{"1/1/0"}, map[string]string{"nvidia.com/use-gpuuuid": uuid(0, 1)}, CardUUIDMismatch, "1 GPU: 1 with a UUID that the pod excludes"},
		{"uuid to avoid", gpu(), nil, []string{"1/1/0"}, map[string]string{"nvidia.com/nouse-gpuuuid": uuid(0, 0)}, CardUUIDMismatch,
			"1 GPU: 1 with a UUID that the pod excludes"},
		{"replicas before memory", gpu(func(c *scheduler.GPU) { c.Replicas = 1 }), []string{"1/80000/0"}, []string{"1/1/0"}, nil, CardTimeSlicingExhausted,
			"1 GPU: 1 without a free replica"},
		{"exclusive before memory", gpu(), []string{"1/80000/0"}, []string{"1/1/100"}, nil, ExclusiveDeviceAllocateConflict,
			"1 GPU: 1 in use, but exclusive use is requested"},
		{"mutex", gpu(), []string{"1/1/0"}, []string{"1/1/0"}, map[string]string{"hami.io/gpu-scheduler-policy": "mutex"}, ExclusiveDeviceAllocateConflict,
			"1 GPU: 1 in use, but exclusive use is requested"},
		{"memory before cores", gpu(), []string{"1/73800/90"}, []string{"1/8000/30"}, nil, CardInsufficientMemory,
			"1 GPU: 1 with less than 8000 MiB free (most: 6200 MiB)"},
		{"memory in percent", gpu(), []string{"1/-60/0"}, []string{"1/-50/0"}, nil, CardInsufficientMemory,
			"1 GPU: 1 with less than 50 percent of their memory free (most: 32000 MiB)"},
		{"cores", gpu(), []string{"1/1/80"}, []string{"1/1/30"}, nil, CardInsufficientCore, "1 GPU: 1 with less than 30 percent of cores free (most: 20 percent)"},
		{"all cores taken", gpu(), []string{"1/1/100"}, []string{"1/1/0"}, nil, CardComputeUnitsExhausted, "1 GPU: 1 with all cores taken"},
		{"too few GPUs", gpu(), nil, []string{"2/1/0"}, nil, NodeInsufficientDevice, `1 GPU, but container "c0" requests 2`},
		{"too few fit", h100s(0, 2), []string{"1/80000/0"}, []string{"2/1/0"}, nil, CardInsufficientMemory,
			"2 GPUs: 1 with less than 1 MiB free (most: 0 MiB), 1 free enough of the 2 that are requested"},
		{"numa", []scheduler.GPU{h100(0, 3), h100(0, 4)}, nil, []string{"2/1/0"}, map[string]string{"nvidia.com/numa-bind": "true"}, NumaNotFit,
			"2 GPUs: 2 free enough, but no NUMA node has 2 of them"},
		{"numa within the container only", []scheduler.GPU{h100(0, 3), h100(0, 4)}, nil, []string{"1/80000/0", "1/80000/0"},
			map[string]string{"nvidia.com/numa-bind": "true"}, OK, "fits"},
		{"the second container", gpu(), nil, []string{"1/50000/0", "1/40000/0"}, nil, CardInsufficientMemory,
			`container "c1": 1 GPU: 1 with less than 40000 MiB free (most: 30000 MiB). Its containers fit one by one, but not together`},
		{"no GPUs", nil, nil, []string{"1/1/0"}, nil, NodeUnregistered, "the node has no GPUs registered: check that the agent runs there"},
		{"several reasons", []scheduler.GPU{with(h100(0, 0), cordoned), with(h100(0, 1), a100), h100(0, 2), h100(0, 3)}, []string{"1/70000/0", "1/71000/0"}, []string{"1/30000/0"},
			map[string]string{"nvidia.com/use-gputype": "h100"}, CardInsufficientMemory,
			"4 GPUs: 2 with less than 30000 MiB free (most: 10000 MiB), 1 cordoned, 1 of another type (NVIDIA A100-SXM4-40GB)"},
		{"scaled cores are no exclusive GPU", gpu(func(c *scheduler.GPU) { c.Cores = 200 }), []string{"1/1/50"}, []string{"1/1/100"}, nil, OK, "fits"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEngine(t, Options{})
			e.SetNode(nodeOf("n", tc.gpus...))
			for i, text := range tc.before {
				place(t, e, podOf(string(rune('a'+i)), text), "n")
			}
			p := annotated(podOf("u", tc.pod...), tc.annotations)
			v := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p))
			verdict := v.Verdict("n")
			require.Equal(t, "n: "+tc.text, verdict.Text())
			require.Equal(t, tc.want, verdict.Reason())
			require.Equal(t, tc.want == OK, verdict.Fits)
			_, err := e.Reserve(p, requestOf(t, e, p), "n", "test")
			require.Equal(t, tc.want == OK, err == nil, "Reserve returns the same")
		})
	}
}

// gpusOf are the GPUs' indices of each container.
func gpusOf(placement scheduler.Placement) (all [][]int) {
	for _, shares := range placement.Containers {
		var gpus []int
		for _, s := range shares {
			for i := range 64 {
				if s.UUID == uuid(0, i) {
					gpus = append(gpus, i)
				}
			}
		}
		all = append(all, gpus)
	}
	return all
}

func TestContainers(t *testing.T) {
	for _, tc := range []struct {
		name string
		gpus []scheduler.GPU
		pod  []string
		want [][]int
	}{
		{"two containers may share a GPU", h100s(0, 1), []string{"1/40000/0", "1/40000/0"}, [][]int{{0}, {0}}},
		{"a container's GPUs are distinct", h100s(0, 2), []string{"2/1000/0"}, [][]int{{0, 1}}},
		{"one without GPUs keeps its position", h100s(0, 1), []string{"0/0/0", "1/40000/0"}, [][]int{nil, {0}}},
		{"an init container takes the pod's own GPUs", h100s(0, 4), []string{"i1/40000/0", "1/40000/0"}, [][]int{{0}, {0}}},
		{"one that needs more takes others too", h100s(0, 2), []string{"i2/40000/0", "1/40000/0"}, [][]int{{0, 1}, {0}}},
		{"a whole GPU, and its init container", h100s(0, 1), []string{"i1/80000/100", "1/80000/100"}, [][]int{{0}, {0}}},
		{"a sidecar counts beside the others", h100s(0, 2), []string{"s1/50000/0", "i1/50000/0", "1/50000/0"}, [][]int{{0}, {1}, {1}}},
		{"in order it doesn't fit, the largest first it does", []scheduler.GPU{with(h100(0, 0), a100), h100(0, 1)},
			[]string{"1/30000/0", "1/10000/0", "1/80000/0"}, [][]int{{0}, {0}, {1}}},
		{"neither helps, but there is a way", h100s(0, 2), []string{"1/40000/0", "1/40000/0", "1/30000/0", "1/25000/0", "1/25000/0"},
			[][]int{{0}, {0}, {1}, {1}, {1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEngine(t, Options{})
			e.SetNode(nodeOf("n", tc.gpus...))
			p := podOf("u", tc.pod...)
			placement, err := e.Reserve(p, requestOf(t, e, p), "n", "test")
			require.NoError(t, err)
			require.Equal(t, tc.want, gpusOf(placement))
		})
	}
}

func TestPercentOfEachGPU(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("n", with(h100(0, 0), a100), h100(0, 1)))
	p := podOf("u", "2/-25/0")
	placement, err := e.Reserve(p, requestOf(t, e, p), "n", "test")
	require.NoError(t, err)
	require.EqualValues(t, 10000, placement.Containers[0][0].MemoryMiB)
	require.EqualValues(t, 20000, placement.Containers[0][1].MemoryMiB)
}

// TestHalves is what others get wrong: sixteen halves on eight GPUs.
func TestHalves(t *testing.T) {
	for _, policy := range []string{"spread", "binpack", "topology-aware", "numa"} {
		t.Run(policy, func(t *testing.T) {
			e := newEngine(t, Options{GPUPolicy: policy})
			e.SetNode(nodeOf("n", h100s(0, 8)...))
			for i := range 16 {
				place(t, e, podOf(nodeName(i), "1/-50/50"), "n")
			}
			for gpu := range 8 {
				require.Equal(t, scheduler.Use{MemoryMiB: 80000, Cores: 100, Replicas: 2}, used(e, "n", gpu))
			}
		})
	}
}

// TestEvictable: no eviction helps where the GPUs themselves are at fault.
func TestEvictable(t *testing.T) {
	for code := OK; code < codes; code++ {
		var counts Counts
		counts[code] = 1
		own := code < NumaNotFit || code == CardUUIDMismatch || code > CardComputeUnitsExhausted
		require.Equal(t, !own, counts.Evictable(), code.String())
	}
}
