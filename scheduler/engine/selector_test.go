package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
)

// Nodes that the operator does not select get no pods; those that they have keep their GPUs.
func TestNodeSelector(t *testing.T) {
	e := newEngine(t, Options{NodeSelector: map[string]string{"gpu": "on", "pool": "a"}})
	set := func(name string, labels map[string]string) {
		n := nodeOf(name, h100(len(name), 0))
		n.Labels = labels
		e.SetNode(n)
	}
	set("a", map[string]string{"gpu": "on", "pool": "a", "other": "x"})
	set("bb", map[string]string{"gpu": "on"})
	set("ccc", map[string]string{"gpu": "on", "pool": "b"})
	set("dddd", nil)
	p := podOf("u1", "1/1000/0")
	fits := func(node string) bool {
		v := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Verdict(node)
		return v.Fits
	}
	require.True(t, fits("a"))
	for _, other := range []string{"bb", "ccc", "dddd"} {
		require.False(t, fits(other), other)
	}
	e.SetPod(place(t, e, p, "a"))
	set("a", map[string]string{"gpu": "off", "pool": "a"})
	require.False(t, fits("a"))
	require.Len(t, e.State("a").Nodes[0].Pods, 1, "it keeps its GPUs")
	set("a", map[string]string{"gpu": "on", "pool": "a"})
	require.EqualValues(t, 1000, used(e, "a", 0).MemoryMiB)

	template := nodeOf("new", h100(9, 0))
	v := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p))
	verdict := e.Template(v, &scheduler.Node{Name: "new", Annotations: template.Annotations, Labels: map[string]string{"gpu": "on", "pool": "a"}})
	require.True(t, verdict.Fits)
	verdict = e.Template(v, template)
	require.False(t, verdict.Fits, "new nodes of this group would not be selected")
}
