package engine

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/scheduler"
)

// Where Domain finds one, all pods get GPUs in it, one after the other, the largest first.
func TestDomain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEngine(t, Options{})
		racks := map[string]string{}
		for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
			name := nodeName(i)
			racks[name] = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "rack")
			n := nodeOf(name, h100s(i, rapid.IntRange(0, 2).Draw(t, "gpus"))...)
			n.Labels = map[string]string{"rack": racks[name]}
			e.SetNode(n)
			if other := podOf(fmt.Sprint("other", i), "1/30000/0"); rapid.Bool().Draw(t, "used") {
				_, _ = e.Reserve(other, requestOf(t, e, other), name, "test") // some nodes have no GPU
			}
		}
		var pods []*scheduler.Pod
		for i := range rapid.IntRange(1, 5).Draw(t, "pods") {
			pods = append(pods, podOf(fmt.Sprint("p", i), fmt.Sprintf("%d/%d/0", rapid.IntRange(1, 2).Draw(t, "gpus"), rapid.Int64Range(10000, 80000).Draw(t, "MiB"))))
		}
		slices.SortStableFunc(pods, func(a, b *scheduler.Pod) int {
			return cmp.Compare(requestOf(t, e, b).GPUMemory(), requestOf(t, e, a).GPUMemory())
		})
		d := e.Domain(e.Snapshot(), "rack", pods, nil)
		if d == nil {
			return
		}
		rack := d.Value
		for _, p := range pods {
			d := e.Domain(e.Snapshot(), "rack", pods, nil)
			require.NotNil(t, d, "a part is placed where the rest has no room")
			require.Equal(t, rack, d.Value)
			r := requestOf(t, e, p)
			at := e.Evaluate(e.Snapshot(), p, r).best(e.Snapshot().Overlay(), d.Nodes)
			require.Equal(t, rack, racks[at])
			_, err := e.Reserve(p, r, at, "test")
			require.NoError(t, err)
		}
	})
}

func TestDomainIsTheFullest(t *testing.T) {
	e := newEngine(t, Options{})
	for i, rack := range []string{"a", "a", "a", "b", "b", ""} {
		n := nodeOf(nodeName(i), h100s(i, 1)...)
		n.Labels = map[string]string{"rack": rack}
		e.SetNode(n)
	}
	pods := []*scheduler.Pod{podOf("1", "1/80000/0"), podOf("2", "1/80000/0"), podOf("3", "1/80000/0")}
	require.Equal(t, "b", e.Domain(e.Snapshot(), "rack", pods[:2], nil).Value)
	require.Equal(t, "a", e.Domain(e.Snapshot(), "rack", pods, nil).Value)
	require.Equal(t, []string{nodeName(0), nodeName(1)},
		e.Domain(e.Snapshot(), "rack", pods[:2], func(n string) bool { return n == nodeName(0) || n == nodeName(1) || n == nodeName(3) }).Nodes)
	require.Nil(t, e.Domain(e.Snapshot(), "zone", pods, nil))
	_, err := e.Reserve(pods[0], requestOf(t, e, pods[0]), nodeName(0), "test")
	require.NoError(t, err)
	require.Equal(t, "a", e.Domain(e.Snapshot(), "rack", pods[:2], nil).Value, "the first one's")
	_, err = e.Reserve(pods[1], requestOf(t, e, pods[1]), nodeName(3), "test")
	require.NoError(t, err)
	require.Nil(t, e.Domain(e.Snapshot(), "rack", pods, nil), "they are apart already")
}
