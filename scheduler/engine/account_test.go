package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

func TestQuota(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100s(0, 2)...))
	e.SetNode(nodeOf("b", h100s(1, 2)...))
	e.SetNode(nodeOf("sick", with(h100(2, 0), sick)))
	e.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 20000, Cores: 60}})
	place(t, e, podOf("u1", "2/4000/10"), "a") // 8000 MiB, 20 cores

	evaluate := func(p *scheduler.Pod, node string) Verdict {
		return e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Verdict(node)
	}
	for _, tc := range []struct{ name, shape, want string }{
		{"what is left", "1/12000/40", "b: fits"},
		{"memory", "1/12001/0", "b: quota of namespace ns: memory in MiB: 12001 requested, 8000 of 20000 used"},
		{"count × amount", "2/6001/0", "b: quota of namespace ns: memory in MiB: 12002 requested, 8000 of 20000 used"},
		{"cores", "2/1/21", "b: quota of namespace ns: cores: 42 requested, 20 of 60 used"},
		{"percent is of the GPU", "1/-16/0", "b: quota of namespace ns: memory in MiB: 12800 requested, 8000 of 20000 used"},
		{"quota before memory", "1/99999/0", "b: quota of namespace ns: memory in MiB: 99999 requested, 8000 of 20000 used"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := podOf("u2", tc.shape)
			verdict := evaluate(p, "b")
			require.Equal(t, tc.want, verdict.Text())
			if !verdict.Fits {
				require.Equal(t, ResourceQuotaNotFit, verdict.Reason())
			}
			_, err := e.Reserve(p, requestOf(t, e, p), "b", "test")
			require.Equal(t, verdict.Fits, err == nil)
			e.DeletePod("u2")
		})
	}
	t.Run("health before quota", func(t *testing.T) {
		verdict := evaluate(podOf("u2", "1/99999/0"), "sick")
		require.Equal(t, CardNotHealth, verdict.Reason())
	})
	t.Run("other namespaces", func(t *testing.T) {
		p := podOf("u2", "1/50000/0")
		p.Namespace = "other"
		verdict := evaluate(p, "b")
		require.True(t, verdict.Fits)
	})
	t.Run("a pod's own reservation is free for it", func(t *testing.T) {
		p := podOf("u1", "2/10000/10")
		verdict := evaluate(p, "b")
		require.True(t, verdict.Fits, verdict.Text())
		_, err := e.Reserve(p, requestOf(t, e, p), "b", "test")
		require.NoError(t, err)
		require.EqualValues(t, 20000, e.quotas.Account("ns").Used.MemoryMiB)
	})
	t.Run("a quota that is gone", func(t *testing.T) {
		e.DeleteQuota("ns", "q")
		verdict := evaluate(podOf("u2", "1/50000/0"), "a")
		require.True(t, verdict.Fits, verdict.Text())
	})
}

func TestGPUQuota(t *testing.T) {
	e := newEngine(t, Options{})
	labelled := func(name, model, pool string) *scheduler.Node {
		n := nodeOf(name, h100s(len(name), 2)...)
		n.Labels = map[string]string{api.LabelTencentModel: model, api.LabelTencentPool: pool}
		return n
	}
	e.SetNode(labelled("a", "M40", "public"))
	e.SetNode(labelled("bb", "M40", "private"))
	e.SetNode(labelled("ccc", "P40", "public"))
	gpus, err := quota.ParseGPUs(`{"ns":{"pool":["public"],"quota":{"M40":1}}}`)
	require.NoError(t, err)
	e.SetGPUQuota(gpus)
	p := podOf("u", "1/1000/60")
	text := func(node string) string {
		verdict := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Verdict(node)
		return verdict.Text()
	}
	require.Equal(t, "a: fits", text("a"))
	require.Contains(t, text("bb"), `bb: quota of namespace ns: the node's pool (label `+api.LabelTencentPool+`) is "private"`)
	require.Contains(t, text("ccc"), `ccc: quota of namespace ns: the namespace has no quota for the node's model`)
	place(t, e, podOf("u1", "1/1000/60"), "a")
	require.Equal(t, "a: quota of namespace ns: GPUs of model M40 in percent: 60 requested, 60 of 100 used", text("a"))

	e.SetNode(labelled("a", "P40", "public")) // the label was wrong
	e.SetNode(labelled("dddd", "M40", "public"))
	require.Equal(t, "dddd: fits", text("dddd"), "the pod is charged to the other model now")
	e.SetGPUQuota(nil)
	require.Equal(t, "bb: fits", text("bb"))
}

// TestChargesAgree: what the fit adds up is what is charged.
func TestChargesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEngine(t, Options{})
		var gpus []scheduler.GPU
		for i := range 3 {
			c := drawGPU(t, 0, i)
			c.Replicas, c.Cores, c.MemoryMiB = 10, 200, c.MemoryMiB+rapid.Int64Range(0, 30).Draw(t, "more")
			gpus = append(gpus, c)
		}
		e.SetNode(nodeOf("n", gpus...))
		var containers []string
		for range rapid.IntRange(1, 4).Draw(t, "containers") {
			containers = append(containers, drawContainer(t, 3))
		}
		p := podOf("u", containers...)
		verdict := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Verdict("n")
		if !verdict.Fits {
			t.Skip("does not fit")
		}
		place(t, e, p, "n")
		o := verdict.outcome
		if got, want := (quota.Charge{MemoryMiB: o.memoryMiB, Cores: int64(o.cores), GPUPercent: int64(o.gpuPercent)}), e.quotas.Account("ns").Used; got != want {
			t.Fatalf("the fit returns %v, but %v is charged", got, want)
		}
	})
}

// TestQuotaAndSmallGPUs: a pod by percent is refused by its quota only where the smallest
// GPUs are too large for it, and then has no more than it may have.
func TestQuotaAndSmallGPUs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEngine(t, Options{GPUPolicy: rapid.SampledFrom([]string{"", "binpack", "topology-aware"}).Draw(t, "policy")})
		var gpus []scheduler.GPU
		var sizes []int64
		for i := range 4 {
			c := h100(0, i)
			c.MemoryMiB = rapid.SampledFrom([]int64{20000, 40000, 80000}).Draw(t, "memory")
			gpus, sizes = append(gpus, c), append(sizes, c.MemoryMiB/2)
		}
		slices.Sort(sizes)
		most := rapid.Int64Range(5000, 120000).Draw(t, "quota")
		e.SetNode(nodeOf("n", gpus...))
		other := podOf("other", "1/1000/10")
		other.Namespace = "other"
		e.SetPod(place(t, e, other, "n"))
		e.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: most, Cores: quota.Unlimited}})
		count := rapid.IntRange(1, 3).Draw(t, "count")
		p := podOf("u", fmt.Sprintf("%d/-50/0", count))
		least := int64(0)
		for _, mib := range sizes[:count] {
			least += mib
		}
		verdict := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Verdict("n")
		if verdict.Fits != (least <= most) {
			t.Fatalf("%d GPUs of %v with %d MiB left: %s", count, sizes, most, verdict.Text())
		}
		if _, err := e.Reserve(p, requestOf(t, e, p), "n", "test"); (err == nil) != verdict.Fits {
			t.Fatalf("Evaluate returns %s, but Reserve %v", verdict.Text(), err)
		}
		if used := e.quotas.Account("ns").Used.MemoryMiB; used > most {
			t.Fatalf("%d MiB of %d", used, most)
		}
	})
}

func TestQuotaAndThePolicysGPU(t *testing.T) {
	e := newEngine(t, Options{GPUPolicy: "binpack"})
	e.SetNode(nodeOf("n", with(h100(0, 0), a100), h100(0, 1)))
	e.SetPod(bindTo(given(t, podOf("other", "1/20000/10"), scheduler.Placement{Node: "n", Containers: [][]grant.Share{{{UUID: uuid(0, 1), MemoryMiB: 20000}}}}), "n"))
	p := podOf("u", "1/-50/0")
	p.Namespace = "limited"
	for _, tc := range []struct{ quota, mib int64 }{{40000, 40000}, {25000, 20000}, {19999, 0}} {
		e.SetQuota("limited", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: tc.quota, Cores: quota.Unlimited}})
		verdict := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Verdict("n")
		require.Equal(t, tc.mib > 0, verdict.Fits, verdict.Text())
		placement, err := e.Reserve(p, requestOf(t, e, p), "n", "test")
		if tc.mib == 0 {
			require.ErrorIs(t, err, ErrNoFit)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tc.mib, placement.Containers[0][0].MemoryMiB)
		e.Unreserve("u", "test")
	}
}

func TestChargesOfPodsBeforeTheirNodes(t *testing.T) {
	e := newEngine(t, Options{})
	p := given(t, podOf("u", "1/20000/0"), scheduler.Placement{Node: "a", Containers: [][]grant.Share{{{UUID: uuid(0, 0), MemoryMiB: 20000}}}})
	e.SetPod(bindTo(p, "a"))
	require.EqualValues(t, 100, e.quotas.Account("ns").Used.GPUPercent, "of a GPU that is not known")
	e.SetNode(nodeOf("a", h100(0, 0)))
	require.EqualValues(t, 25, e.quotas.Account("ns").Used.GPUPercent)
	e.DeletePod("u")
	require.Zero(t, e.quotas.Account("ns").Used)
}
