package request

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
)

const (
	gpu     = "nvidia.com/gpu"
	gpumem  = "nvidia.com/gpumem"
	percent = "nvidia.com/gpumem-percentage"
	cores   = "nvidia.com/gpucores"
	prio    = "nvidia.com/priority"
	vcore   = "tencent.com/vcuda-core"
	vmem    = "tencent.com/vcuda-memory"
)

// resources are a container's resources.
type resources map[string]int64

func (s resources) container(name string) scheduler.Container {
	c := scheduler.Container{Name: name, Resources: map[string]scheduler.Amount{}}
	for key, n := range s {
		c.Resources[key] = scheduler.Amount{Value: n}
	}
	return c
}

func pod(s resources) *scheduler.Pod {
	return &scheduler.Pod{Namespace: "ns", Name: "p", Containers: []scheduler.Container{s.container("main")}}
}

func TestResources(t *testing.T) {
	whole := func(n int) Container { return Container{GPUs: n, MemoryPercent: 100, Cores: 100} }
	for _, test := range []struct {
		description string
		resources   resources
		want        Container
	}{
		{"nothing", resources{}, Container{}},
		{"others' resources", resources{"example.com/nic": 1}, Container{}},
		{"a MIG device is the kubelet's", resources{"nvidia.com/mig-1g.10gb": 1, gpu: 0}, Container{}},
		{"none of everything", resources{gpu: 0, gpumem: 0, percent: 0, cores: 0}, Container{}},
		{"none, with a priority", resources{gpu: 0, prio: 1}, Container{}},
		{"none of gpu-manager's", resources{vcore: 0, vmem: 0}, Container{}},

		{"only a count is all of the GPU", resources{gpu: 1}, whole(1)},
		{"several", resources{gpu: 16}, whole(16)},
		{"memory", resources{gpu: 1, gpumem: 3000}, Container{GPUs: 1, MemoryMiB: 3000}},
		{"memory of each", resources{gpu: 2, gpumem: 3000, cores: 30}, Container{GPUs: 2, MemoryMiB: 3000, Cores: 30}},
		{"percent", resources{gpu: 1, percent: 1}, Container{GPUs: 1, MemoryPercent: 1}},
		{"all memory by percent is exclusive", resources{gpu: 1, percent: 100}, whole(1)},
		{"all memory and some cores", resources{gpu: 1, cores: 30}, Container{GPUs: 1, MemoryPercent: 100, Cores: 30}},
		{"all memory and cores not limited", resources{gpu: 1, cores: 0}, Container{GPUs: 1, MemoryPercent: 100}},
		{"all cores are exclusive", resources{gpu: 1, gpumem: 1, cores: 100}, Container{GPUs: 1, MemoryMiB: 1, Cores: 100}},
		{"priority", resources{gpu: 1, gpumem: 1, prio: 1}, Container{GPUs: 1, MemoryMiB: 1}},
		{"as much memory as there can be", resources{gpu: 1, gpumem: 16 << 20}, Container{GPUs: 1, MemoryMiB: 16 << 20}},

		{"without the webhook: only memory", resources{gpumem: 3000}, Container{GPUs: 1, MemoryMiB: 3000}},
		{"without the webhook: only percent", resources{percent: 50}, Container{GPUs: 1, MemoryPercent: 50}},
		{"without the webhook: only cores", resources{cores: 50}, Container{GPUs: 1, MemoryPercent: 100, Cores: 50}},
		{"without the webhook: memory, and cores not limited", resources{gpumem: 5, cores: 0}, Container{GPUs: 1, MemoryMiB: 5}},

		{"gpu-manager: a part", resources{vcore: 30, vmem: 4}, Container{GPUs: 1, MemoryMiB: 1024, Cores: 30}},
		{"gpu-manager: nearly all", resources{vcore: 99, vmem: 1}, Container{GPUs: 1, MemoryMiB: 256, Cores: 99}},
		{"gpu-manager: a GPU", resources{vcore: 100}, whole(1)},
		{"gpu-manager: a GPU without memory", resources{vcore: 100, vmem: 0}, whole(1)},
		{"gpu-manager: a GPU has all its memory", resources{vcore: 100, vmem: 4}, whole(1)},
		{"gpu-manager: GPUs that don't divide the memory", resources{vcore: 300, vmem: 1}, whole(3)},
		{"gpu-manager: more memory than a GPU has", resources{vcore: 100, vmem: 1 << 60}, whole(1)},
		{"gpu-manager: GPUs", resources{vcore: 1600}, whole(16)},
		{"gpu-manager's beside none of HAMi's", resources{gpu: 0, vcore: 100}, whole(1)},
	} {
		t.Run(test.description, func(t *testing.T) {
			r, err := FromPod(pod(test.resources), DefaultOptions())
			require.NoError(t, err)
			if test.want == (Container{}) {
				assert.Nil(t, r)
				return
			}
			assert.Equal(t, []Container{test.want}, r.Containers)
		})
	}
}

// TestVcudaLimitsWholeGPUs is the option.
func TestVcudaLimitsWholeGPUs(t *testing.T) {
	o := DefaultOptions()
	o.VcudaLimitsWholeGPUs = true
	for _, test := range []struct {
		resources resources
		want      Container
	}{
		{resources{vcore: 100}, Container{GPUs: 1, MemoryPercent: 100, Cores: 100}},
		{resources{vcore: 100, vmem: 4}, Container{GPUs: 1, MemoryMiB: 1024, Cores: 100}},
		{resources{vcore: 200, vmem: 6}, Container{GPUs: 2, MemoryMiB: 768, Cores: 100}},
	} {
		r, err := FromPod(pod(test.resources), o)
		require.NoError(t, err)
		assert.Equal(t, []Container{test.want}, r.Containers)
	}
	_, err := FromPod(pod(resources{vcore: 200, vmem: 3}), o)
	require.ErrorContains(t, err, "tencent.com/vcuda-memory: 3: is for all 2 GPUs together")
	_, err = FromPod(pod(resources{vcore: 100, vmem: 1 << 60}), o)
	require.ErrorContains(t, err, "is more than any GPU has")
}

func TestResourcesRefused(t *testing.T) {
	for _, test := range []struct {
		description string
		resources   resources
		want        string
	}{
		{"negative", resources{gpu: -1}, `container "main": nvidia.com/gpu: -1: must not be negative`},
		{"negative memory", resources{gpu: 1, gpumem: -5}, "nvidia.com/gpumem: -5: must not be negative"},
		{"negative of gpu-manager's", resources{vcore: -100}, "tencent.com/vcuda-core: -100: must not be negative"},
		{"too many GPUs", resources{gpu: 17}, "nvidia.com/gpu: 17: a container may have at most 16 GPUs"},
		{"more than an int", resources{gpu: 1 << 40}, "at most 16"},
		{"no GPU and memory of each", resources{gpu: 0, gpumem: 100}, "nvidia.com/gpu: 0: requests no GPU"},
		{"no GPU and cores of each", resources{gpu: 0, cores: 100}, "nvidia.com/gpu: 0: requests no GPU"},
		{"no memory", resources{gpu: 1, gpumem: 0}, "nvidia.com/gpumem: 0: no program runs without memory"},
		{"no memory only", resources{gpumem: 0}, "nvidia.com/gpumem: 0: no program runs without memory"},
		{"0 %", resources{gpu: 1, percent: 0}, "nvidia.com/gpumem-percentage: 0: no program runs without memory"},
		{"more memory than there is", resources{gpu: 1, gpumem: 16<<20 + 1}, "nvidia.com/gpumem: 16777217: is more than any GPU has"},
		{"what HAMi drops: no int32", resources{gpu: 1, gpumem: 1 << 31}, "nvidia.com/gpumem: 2147483648: is more than any GPU has"},
		{"what HAMi clamps: percent", resources{gpu: 1, percent: 101}, "nvidia.com/gpumem-percentage: 101: is percent of each GPU's memory: request at most 100"},
		{"what HAMi clamps: cores", resources{gpu: 1, cores: 200}, "nvidia.com/gpucores: 200: is percent of each GPU: request at most 100, and more GPUs by nvidia.com/gpu"},
		{"memory twice", resources{gpu: 1, gpumem: 100, percent: 10}, "nvidia.com/gpumem-percentage: 10: nvidia.com/gpumem is set too (100): use only one of them"},
		{"nothing of cores", resources{cores: 0}, "nvidia.com/gpucores: 0: requests nothing"},
		{"priority", resources{gpu: 1, prio: 2}, "nvidia.com/priority: 2: must be 0 (high) or 1"},
		{"a priority of nothing", resources{prio: 0}, "nvidia.com/priority: 0: the container requests no GPU"},
		{"a bad priority of nothing", resources{gpu: 0, prio: 2}, "must be 0 (high) or 1"},

		{"gpu-manager: one and a half", resources{vcore: 150}, "tencent.com/vcuda-core: 150: cores above 100 must be a multiple of 100 (one GPU): request 100 or 200"},
		{"gpu-manager: a part without memory", resources{vcore: 30}, "tencent.com/vcuda-core: 30: a part of a GPU needs memory: set tencent.com/vcuda-memory too, in blocks of 256 MiB"},
		{"gpu-manager: only memory", resources{vmem: 4}, "tencent.com/vcuda-memory: 4: a container with memory needs cores: set tencent.com/vcuda-core too"},
		{"gpu-manager: too many GPUs", resources{vcore: 1700}, "tencent.com/vcuda-core: 1700: a container may have at most 16 GPUs"},
		{"gpu-manager: blocks that overflow as MiB", resources{vcore: 50, vmem: 1 << 60}, "tencent.com/vcuda-memory: 1152921504606846976: is more than any GPU has"},
		{"both profiles", resources{gpu: 1, gpumem: 100, vcore: 100}, "tencent.com/vcuda-core: 100: the container also requests GPUs by nvidia.com/gpu"},
		{"a MIG device too", resources{gpu: 1, "nvidia.com/mig-2g.20gb": 1, "nvidia.com/mig-1g.10gb": 2}, "nvidia.com/mig-1g.10gb: 2: the container requests GPUs too"},
		{"both profiles, without a count", resources{gpumem: 100, vcore: 30, vmem: 1}, "use only one of them"},
	} {
		t.Run(test.description, func(t *testing.T) {
			r, err := FromPod(pod(test.resources), DefaultOptions())
			var refused *Error
			require.ErrorAs(t, err, &refused)
			assert.Nil(t, r)
			assert.ErrorContains(t, err, test.want)
			assert.Equal(t, "main", refused.Container)
		})
	}
}

func TestAmountsThatAreNone(t *testing.T) {
	for key := range (resources{gpu: 1, gpumem: 1, percent: 1, cores: 1, prio: 1, vcore: 1, vmem: 1}) {
		p := pod(resources{gpu: 1})
		p.Containers[0].Resources[key] = scheduler.Amount{Value: 1, Invalid: "1500m is no whole number"}
		_, err := FromPod(p, DefaultOptions())
		require.EqualError(t, err, `container "main": `+key+`: "1500m is no whole number": must be an integer`)
	}
}

func TestOptions(t *testing.T) {
	o := DefaultOptions()
	o.MemoryFactor, o.DefaultMemoryMiB, o.DefaultCores, o.DefaultCount = 1024, 5000, 20, 2
	read := func(s resources) Container {
		r, err := FromPod(pod(s), o)
		require.NoError(t, err)
		return r.Containers[0]
	}
	assert.Equal(t, Container{GPUs: 1, MemoryMiB: 5000, Cores: 20}, read(resources{gpu: 1}), "the defaults are in MiB and percent")
	assert.Equal(t, Container{GPUs: 2, MemoryMiB: 3072, Cores: 20}, read(resources{gpumem: 3}))
	assert.Equal(t, Container{GPUs: 1, MemoryPercent: 100, Cores: 100}, read(resources{gpu: 1, percent: 100}), "100 percent of memory is exclusive")
	assert.Equal(t, Container{GPUs: 1, MemoryMiB: 5000}, read(resources{gpu: 1, cores: 0}))
	_, err := FromPod(pod(resources{gpu: 1, gpumem: 16<<10 + 1}), o)
	require.ErrorContains(t, err, "the unit is 1024 MiB")

	o.DefaultCount = 0
	_, err = FromPod(pod(resources{gpumem: 3}), o)
	require.ErrorContains(t, err, `container "main": nvidia.com/gpu: is missing: set the number of GPUs`)

	o = DefaultOptions()
	o.Names.VcudaCore, o.Names.VcudaMemory, o.Names.Count = "", "", "example.com/gpu"
	r, err := FromPod(pod(resources{vcore: 150, vmem: -1, gpu: -1}), o)
	require.NoError(t, err, "names that aren't the cluster's")
	assert.Nil(t, r)
	r, err = FromPod(pod(resources{"example.com/gpu": 1}), o)
	require.NoError(t, err)
	assert.Equal(t, 1, r.Containers[0].GPUs)
}

func TestContainersOfAPod(t *testing.T) {
	p := &scheduler.Pod{Containers: []scheduler.Container{
		resources{gpumem: 100, prio: 0}.container("init"), resources{}.container("sidecar"), resources{vcore: 100}.container("main"),
	}}
	p.Containers[0].Kind, p.Containers[1].Kind = scheduler.Init, scheduler.Sidecar
	r, err := FromPod(p, DefaultOptions())
	require.NoError(t, err)
	assert.Equal(t, []Container{{GPUs: 1, MemoryMiB: 100}, {}, {GPUs: 1, MemoryPercent: 100, Cores: 100}}, r.Containers)
	assert.Equal(t, []scheduler.Kind{scheduler.Init, scheduler.Sidecar, scheduler.App}, r.Kinds)
	assert.True(t, r.HighPriority)

	for range 126 {
		p.Containers = append(p.Containers, resources{}.container("more"))
	}
	_, err = FromPod(p, DefaultOptions())
	require.EqualError(t, err, "containers: 129: a pod with GPUs may have at most 128")
	p.Containers[0].Resources, p.Containers[2].Resources = nil, nil
	r, err = FromPod(p, DefaultOptions())
	require.NoError(t, err, "any number of containers without GPUs")
	assert.Nil(t, r)
}

func TestMemoryOfAGPU(t *testing.T) {
	for _, test := range []struct {
		c         Container
		gpu, want int64
	}{
		{Container{MemoryMiB: 3000}, 1000, 3000},
		{Container{MemoryPercent: 100}, 143771, 143771},
		{Container{MemoryPercent: 50}, 143771, 71885},
		{Container{MemoryPercent: 1}, 99, 1},
		{Container{MemoryPercent: 33}, 100, 33},
		{Container{MemoryPercent: 99}, 0, 0},
		{Container{MemoryPercent: 99}, 1 << 62, 1<<62/100*99 + 1<<62%100*99/100},
		{Container{}, 1000, 0},
	} {
		assert.Equal(t, test.want, test.c.Memory(test.gpu), "%+v of %d", test.c, test.gpu)
	}
	assert.Equal(t, scheduler.Use{MemoryMiB: 500, Cores: 7, Replicas: 1}, (&Container{MemoryPercent: 50, Cores: 7}).Use(1000))
}

func TestExclusive(t *testing.T) {
	assert.True(t, (&Container{Cores: 100}).Exclusive(100))
	assert.True(t, (&Container{Cores: 100}).Exclusive(50), "a GPU with fewer cores")
	assert.False(t, (&Container{Cores: 100}).Exclusive(200), "100 cores are half of the GPU")
	assert.False(t, (&Container{Cores: 99}).Exclusive(100))
}
