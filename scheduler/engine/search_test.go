package engine

import (
	"fmt"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// drawGPU is one of few sizes, so that there are ties and tight fits.
func drawGPU(t *rapid.T, node, i int) scheduler.GPU {
	c := h100(node, i)
	c.MemoryMiB = rapid.SampledFrom([]int64{0, 4, 6, 7, 7}).Draw(t, "memory")
	c.Cores = rapid.SampledFrom([]int{100, 100, 100, 150}).Draw(t, "cores")
	c.Replicas = rapid.IntRange(0, 4).Draw(t, "replicas")
	c.NUMA = rapid.IntRange(-1, 1).Draw(t, "numa")
	return c
}

func drawContainer(t *rapid.T, gpus int) string {
	return fmt.Sprintf("%s%d/%d/%d", rapid.SampledFrom([]string{"", "", "i", "s"}).Draw(t, "kind"), rapid.IntRange(1, gpus).Draw(t, "count"),
		rapid.SampledFrom([]int{1, 2, 3, 4, 5, -50, -100}).Draw(t, "memory"), rapid.SampledFrom([]int{0, 30, 50, 100}).Draw(t, "cores"))
}

// allows reports by plain simulation whether the GPUs of the assignment can serve the pod: it
// lets the containers start and end as Kubernetes does.
func allows(gpus []scheduler.GPU, others []scheduler.Use, r *request.Request, assigned [][]int) bool {
	order := positions(r)
	for c, gpu := range gpus {
		running, exclusive := others[c], false
		for k, position := range order {
			mine := false
			for _, a := range assigned[k] {
				mine = mine || a == c
			}
			if !mine {
				continue
			}
			if gpu.MemoryMiB == 0 { // that there is no replica is seen below
				return false
			}
			want := &r.Containers[position]
			whole := want.Cores == 100 && gpu.Cores <= 100
			if whole && running.Replicas > 0 || exclusive {
				return false
			}
			if want.Cores == 0 && running.Cores >= gpu.Cores {
				return false
			}
			now := running.Add(want.Use(gpu.MemoryMiB))
			if now.MemoryMiB > gpu.MemoryMiB || now.Cores > gpu.Cores || now.Replicas > gpu.Replicas {
				return false
			}
			if r.Kinds[position] != scheduler.Init {
				running, exclusive = now, exclusive || whole
			}
		}
	}
	return true
}

// anyWay tries all assignments.
func anyWay(gpus []scheduler.GPU, others []scheduler.Use, r *request.Request, assigned [][]int) bool {
	k := len(assigned)
	order := positions(r)
	if k == len(order) {
		return allows(gpus, others, r, assigned)
	}
	for set := 1; set < 1<<len(gpus); set++ {
		var chosen []int
		numa := true
		for c := range gpus {
			if set&(1<<c) != 0 {
				chosen = append(chosen, c)
				numa = numa && gpus[c].NUMA == gpus[chosen[0]].NUMA
			}
		}
		if len(chosen) != r.Containers[order[k]].GPUs || r.Rules.NUMABind && !numa {
			continue
		}
		if anyWay(gpus, others, r, append(assigned[:k:k], chosen)) {
			return true
		}
	}
	return false
}

// TestFindsWhatFits compares with all there is to try.
func TestFindsWhatFits(t *testing.T) {
	fits, not := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var gpus []scheduler.GPU
		for i := range rapid.IntRange(1, 3).Draw(t, "gpus") {
			gpus = append(gpus, drawGPU(t, 0, i))
		}
		e := newEngine(t, Options{GPUPolicy: rapid.SampledFrom([]string{"", "binpack", "topology-aware", "numa", "tencent"}).Draw(t, "policy")})
		e.SetNode(nodeOf("n", gpus...))
		for i := range rapid.IntRange(0, 2).Draw(t, "before") {
			p := podOf(fmt.Sprint("before", i), drawContainer(t, 1))
			_, _ = e.Reserve(p, requestOf(t, e, p), "n", "test")
		}
		others := append([]scheduler.Use(nil), e.Snapshot().node("n").used...)
		var containers []string
		for range rapid.IntRange(1, 4).Draw(t, "containers") {
			if n := len(containers); n > 0 && rapid.Bool().Draw(t, "the same again") {
				containers = append(containers, containers[n-1])
			} else {
				containers = append(containers, drawContainer(t, len(gpus)))
			}
		}
		p := podOf("u", containers...)
		if rapid.Bool().Draw(t, "numa-bind") {
			p = annotated(p, map[string]string{"nvidia.com/numa-bind": "true"})
		}
		r := requestOf(t, e, p)
		want := anyWay(gpus, others, r, nil)
		verdict := e.Evaluate(e.Snapshot(), p, r).Verdict("n")
		if verdict.Fits != want {
			t.Fatalf("%v on %v with %v taken: fits is %v, and must be %v (%s)", containers, gpus, others, verdict.Fits, want, verdict.Text())
		}
		placement, err := e.Reserve(p, r, "n", "test")
		if (err == nil) != want {
			t.Fatalf("Reserve returns %v", err)
		}
		if !want {
			not++
			if main := verdict.Reason(); main == OK {
				t.Fatalf("no reason: %v", verdict.Reasons())
			}
			return
		}
		fits++
		checkPlacement(t, p, r, gpus, others, placement)
		if got, counted := e.Snapshot().node("n").used, after(gpus, others, p, placement); fmt.Sprint(got) != fmt.Sprint(counted) {
			t.Fatalf("taken is %v, and by the model %v", got, counted)
		}
	})
	require.NotZero(t, fits)
	require.NotZero(t, not)
}

// anyWayPruned is anyWay for more containers: it gives up an assignment as soon as its first containers don't fit.
func anyWayPruned(gpus []scheduler.GPU, others []scheduler.Use, r *request.Request, assigned [][]int, k int) bool {
	if k == len(assigned) {
		return true
	}
	want := r.Containers[positions(r)[k]].GPUs
	for set := 1; set < 1<<len(gpus); set++ {
		if bits.OnesCount(uint(set)) != want {
			continue
		}
		assigned[k] = nil
		for c := range gpus {
			if set&(1<<c) != 0 {
				assigned[k] = append(assigned[k], c)
			}
		}
		if allows(gpus, others, r, assigned) && anyWayPruned(gpus, others, r, assigned, k+1) {
			return true
		}
	}
	assigned[k] = nil
	return false
}

// TestFindsWhatFitsWithInitContainers is of pods that fit barely, on GPUs of several sizes.
func TestFindsWhatFitsWithInitContainers(t *testing.T) {
	fits, not := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var gpus []scheduler.GPU
		for i := range rapid.IntRange(3, 4).Draw(t, "gpus") {
			gpu := h100(0, i)
			gpu.MemoryMiB, gpu.Replicas = rapid.Int64Range(6, 16).Draw(t, "memory"), 5
			gpus = append(gpus, gpu)
		}
		e := newEngine(t, Options{})
		e.SetNode(nodeOf("n", gpus...))
		var containers []string
		for _, kind := range []string{"i", "s", "i", ""} {
			for range rapid.IntRange(1, 2).Draw(t, "containers") {
				containers = append(containers, fmt.Sprintf("%s%d/%d/%d", kind, rapid.IntRange(1, 2).Draw(t, "count"),
					rapid.IntRange(2, 8).Draw(t, "memory"), rapid.SampledFrom([]int{10, 30, 40, 50, 100}).Draw(t, "cores")))
			}
		}
		p := podOf("u", containers...)
		r := requestOf(t, e, p)
		want := anyWayPruned(gpus, make([]scheduler.Use, len(gpus)), r, make([][]int, len(positions(r))), 0)
		if verdict := e.Evaluate(e.Snapshot(), p, r).Verdict("n"); verdict.Fits != want {
			t.Fatalf("%v on %v: fits is %v, and must be %v (%s)", containers, gpus, verdict.Fits, want, verdict.Text())
		}
		if want {
			fits++
		} else {
			not++
		}
	})
	require.NotZero(t, fits)
	require.NotZero(t, not)
}

// TestInitContainersDoNotCutTheSearch is a case that the search gave up.
func TestInitContainersDoNotCutTheSearch(t *testing.T) {
	e := newEngine(t, Options{})
	gpus := h100s(0, 4)
	for i, mib := range []int64{12, 7, 8, 6} {
		gpus[i].MemoryMiB, gpus[i].Replicas = mib, 5
	}
	e.SetNode(nodeOf("n", gpus...))
	p := podOf("u", "i2/3/10", "s1/2/100", "s2/2/10", "i1/3/10", "i1/2/30", "1/5/10", "2/7/10")
	verdict := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Verdict("n")
	require.True(t, verdict.Fits, verdict.Text())
}

// checkPlacement checks that the placement is what the pod requested and what was free.
func checkPlacement(t tester, p *scheduler.Pod, r *request.Request, gpus []scheduler.GPU, others []scheduler.Use, placement scheduler.Placement) {
	t.Helper()
	var assigned [][]int
	for _, position := range positions(r) {
		want := &r.Containers[position]
		var chosen []int
		for _, s := range placement.Containers[position] {
			for c := range gpus {
				if gpus[c].UUID == s.UUID {
					chosen = append(chosen, c)
					if s != (grant.Share{UUID: s.UUID, MemoryMiB: want.Memory(gpus[c].MemoryMiB), CorePercent: want.Cores}) {
						t.Fatalf("container %d is given %v", position, s)
					}
				}
			}
		}
		if grant.ValidateShares(placement.Containers[position]) != nil || len(chosen) != want.GPUs {
			t.Fatalf("container %d is given %v", position, placement.Containers[position])
		}
		assigned = append(assigned, chosen)
	}
	if !allows(gpus, others, r, assigned) {
		t.Fatalf("pod %s: %v does not fit beside %v", p.Name, placement, others)
	}
}

// after is what is taken with the placement, by the model's count.
func after(gpus []scheduler.GPU, others []scheduler.Use, p *scheduler.Pod, placement scheduler.Placement) []scheduler.Use {
	uses := scheduler.Uses(p.Containers, placement.Containers)
	var all []scheduler.Use
	for i, c := range gpus {
		all = append(all, others[i].Add(uses[c.UUID]))
	}
	return all
}

// TestSearchesEnd is of a pod that is made to be searched for long, on many nodes: what it
// costs is bounded, and the text states that the search was not complete.
func TestSearchesEnd(t *testing.T) {
	e := newEngine(t, Options{})
	const nodes = 10 * chunkSize
	for i := range nodes {
		gpus := h100s(i, 8)
		for k := range gpus {
			gpus[k].Replicas, gpus[k].MemoryMiB = 100, int64(80000+7*k+i) // no node is as another one
		}
		e.SetNode(nodeOf(nodeName(i), gpus...))
	}
	var containers []string
	for i := range 20 {
		containers = append(containers, fmt.Sprintf("1/%d/1", 32000+i%3))
	}
	p := podOf("u", containers...)
	v := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p))
	verdict := v.Verdict(nodeName(0))
	require.False(t, verdict.Fits)
	require.Contains(t, verdict.Text(), "no placement of all of them was found; not all were tried")
	require.NotContains(t, verdict.Text(), "not together")

	f := v.fitter()
	defer f.release()
	budget := f.budget
	for _, c := range v.snapshot.table {
		f.budget = evaluationSteps / len(v.snapshot.table) / 10
		before := f.budget
		(*outcomeChunk)(nil).update(f, c)
		require.Less(t, f.budget, 0, "it is a pod that is searched for long")
		require.LessOrEqual(t, before-f.budget, before+searchSteps+chunkSize*leastSteps)
	}
	require.Equal(t, evaluationSteps, budget, "one node is searched as long as may be")
}

// TestSearchOnEqualNodes is of a pod that fits on each node after a search of 283 steps, for which a chunk has not enough.
func TestSearchOnEqualNodes(t *testing.T) {
	e := newEngine(t, Options{})
	const nodes = 30 * chunkSize
	for i := range nodes {
		e.SetNode(nodeOf(nodeName(i), h100s(i, 4)...))
	}
	p := podOf("u", "1/34000/0", "1/23000/0", "1/29000/0", "1/48000/0", "1/15000/0", "1/24000/0", "1/48000/0", "1/26000/0", "1/33000/0", "1/23000/0")
	v := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p))
	for i := range nodes {
		verdict := v.Verdict(nodeName(i))
		require.True(t, verdict.Fits, "%s: %s", nodeName(i), verdict.Text())
	}
}
