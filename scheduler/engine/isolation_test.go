package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

func isolated(i grant.Isolation) func(*scheduler.GPU) {
	return func(c *scheduler.GPU) { c.Isolation = i }
}

func wants(isolation string) map[string]string {
	return map[string]string{api.AnnotationIsolation: isolation}
}

// Each request on nodes of each isolation: what is placed, with which share, and what is reported of the others.
func TestIsolation(t *testing.T) {
	const unknown, limiter, driver = grant.IsolationAny, grant.IsolationLimiter, grant.IsolationDriver
	oversold := func(c *scheduler.GPU) { c.MemoryMiB, c.Cores = 160000, 200 }
	for _, tc := range []struct {
		wants  string
		node   grant.Isolation
		change func(*scheduler.GPU)
		before []string
		pod    string
		share  string // of the GPU; "": it does not fit
		code   Code
		text   string
	}{
		{wants: "any", node: unknown, pod: "1/8000/30", share: "8000/30"},
		{wants: "limiter", node: unknown, pod: "1/8000/30", code: IsolationUnmet, text: "1 GPU: 1 with the isolation not known, but limiter is requested"},
		{wants: "limiter", node: limiter, pod: "1/8000/30", share: "8000/30"},
		{wants: "limiter", node: driver, pod: "1/8000/30", share: "8000/30"},
		{wants: "driver", node: driver, pod: "1/8000/30", share: "8000/30"},
		{wants: "driver", node: limiter, pod: "1/8000/30", code: IsolationUnmet, text: "1 GPU: 1 with the isolation limiter, but driver is requested"},
		{wants: "driver", node: unknown, pod: "1/8000/30", code: IsolationUnmet, text: "1 GPU: 1 with the isolation not known, but driver is requested"},
		{wants: "hardware", node: unknown, pod: "1/8000/30", code: IsolationUnmet, text: "1 GPU: 1 with the isolation not known, but hardware is requested"},
		{wants: "hardware", node: limiter, pod: "1/8000/30", share: "80000/100"},
		{wants: "hardware", node: driver, pod: "1/-25/0", share: "80000/100"},
		{wants: "hardware", node: limiter, pod: "1/80000/0", share: "80000/100"},
		{wants: "hardware", node: limiter, change: oversold, pod: "1/100000/0", share: "160000/100"},
		{wants: "hardware", node: limiter, pod: "1/80001/0", code: CardInsufficientMemory, text: "1 GPU: 1 not free as a whole, with 80001 MiB or more (most: 80000 MiB)"},
		{wants: "hardware", node: limiter, before: []string{"1/1/1"}, pod: "1/8000/30", code: ExclusiveDeviceAllocateConflict,
			text: "1 GPU: 1 in use, but exclusive use is requested"},
		{wants: "hardware", node: limiter, change: oversold, before: []string{"1/1/1"}, pod: "1/8000/30", code: CardInsufficientMemory,
			text: "1 GPU: 1 not free as a whole, with 8000 MiB or more (most: 159999 MiB)"},
	} {
		t.Run(fmt.Sprintf("%s on %s %s", tc.wants, tc.node, tc.pod), func(t *testing.T) {
			e := newEngine(t, Options{})
			gpu := with(h100(0, 0), isolated(tc.node))
			if tc.change != nil {
				tc.change(&gpu)
			}
			e.SetNode(nodeOf("n", gpu))
			for i, text := range tc.before {
				place(t, e, podOf(fmt.Sprint("before", i), text), "n")
			}
			p := annotated(podOf("u", tc.pod), wants(tc.wants))
			verdict := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Verdict("n")
			require.Equal(t, tc.code, verdict.Reason(), verdict.Text())
			if tc.share == "" {
				require.Equal(t, "n: "+tc.text, verdict.Text())
				_, err := e.Reserve(p, requestOf(t, e, p), "n", "test")
				require.Error(t, err)
				return
			}
			placement, err := e.Reserve(p, requestOf(t, e, p), "n", "test")
			require.NoError(t, err)
			s := placement.Containers[0][0]
			require.Equal(t, tc.share, fmt.Sprintf("%d/%d", s.MemoryMiB, s.CorePercent))
		})
	}
}

// Whatever is on the nodes: what the scheduler places passes the node's check.
func TestPlacementsHaveTheRequestedIsolation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEngine(t, Options{})
		has, gpus := map[string]grant.Isolation{}, map[string]grant.GPU{}
		for n := range 3 {
			var list []scheduler.GPU
			for i := range rapid.IntRange(1, 3).Draw(t, "GPUs") {
				gpu := with(h100(n, i), isolated(grant.Isolation(rapid.IntRange(0, 2).Draw(t, "isolation"))))
				gpu.MemoryMiB = rapid.SampledFrom([]int64{40000, 80000}).Draw(t, "memory")
				has[gpu.UUID], gpus[gpu.UUID] = gpu.Isolation, grant.GPU{UUID: gpu.UUID, MemoryMiB: gpu.MemoryMiB}
				list = append(list, gpu)
			}
			e.SetNode(nodeOf(nodeName(n), list...))
		}
		used, whole := map[string]int64{}, map[string]bool{}
		for i := range 12 {
			wanted := rapid.SampledFrom([]string{"any", "limiter", "driver", "hardware"}).Draw(t, "wants")
			pod := rapid.SampledFrom([]string{"1/8000/30", "1/50000/0", "2/1000/10", "1/-50/0", "1/0/0"}).Draw(t, "pod")
			p := annotated(podOf(fmt.Sprint(i), pod), wants(wanted))
			v := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p))
			node := nodeName(rapid.IntRange(0, 2).Draw(t, "node"))
			verdict := v.Verdict(node)
			placement, err := e.Reserve(p, requestOf(t, e, p), node, "test")
			if verdict.Fits != (err == nil) {
				t.Fatalf("%v, but reserved with %v", verdict.Fits, err)
			}
			if err != nil {
				continue
			}
			isolation, err := grant.ParseIsolation(wanted)
			require.NoError(t, err)
			for _, s := range placement.Containers[0] {
				used[s.UUID] += s.MemoryMiB
				if isolation > grant.IsolationLimiter {
					require.NoError(t, isolation.Check([]grant.Share{s}, gpus, has[s.UUID]))
					require.NotEqual(t, grant.IsolationAny, has[s.UUID])
				}
				require.False(t, whole[s.UUID], "a GPU of its own gets no other container")
				whole[s.UUID] = isolation == grant.IsolationHardware
				require.LessOrEqual(t, used[s.UUID], gpus[s.UUID].MemoryMiB)
			}
		}
	})
}

// A GPU that a pod has for itself stays whole.
func TestHardwareIsolationIsNotResized(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", with(h100(0, 0), isolated(grant.IsolationLimiter))))
	pod := place(t, e, annotated(podOf("u", "1/8000/30"), wants("hardware")), "a")
	e.SetPod(pod)
	_, err := e.Resize(pod, container0(to(8000, -1)))
	require.ErrorIs(t, err, ErrResize)
	require.ErrorContains(t, err, "its GPUs stay whole")
	_, err = e.Resize(pod, container0(to(-1, 50)))
	require.NoError(t, err)
	_, err = e.Resize(annotated(pod, wants("x")), container0(to(-1, 60)))
	require.ErrorContains(t, err, "must be hardware, driver, limiter or any")
}

// An autoscaler's node has the isolation of its label, or of the copied node's GPUs.
func TestIsolationOfTemplates(t *testing.T) {
	e := newEngine(t, Options{})
	p := annotated(podOf("u", "1/8000/30"), wants("driver"))
	v := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p))
	for label, fits := range map[string]bool{"": false, "limiter": false, "native": true, "native-limiter": true} {
		labels := map[string]string{api.LabelPrefix + "count": "1", api.LabelPrefix + "memory": "80000", api.LabelPrefix + "memory-enforcement": label}
		verdict := e.Template(v, &scheduler.Node{Name: "new", Labels: labels})
		require.Equal(t, fits, verdict.Fits, verdict.Text())
	}
	copied := e.Template(v, nodeOf("copy", with(h100(0, 0), isolated(grant.IsolationDriver))))
	require.True(t, copied.Fits)
}
