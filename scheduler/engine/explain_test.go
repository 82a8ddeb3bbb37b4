package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
)

func TestSummary(t *testing.T) {
	e := newEngine(t, Options{})
	p := podOf("u", "1/50000/0")
	summary := func() string { return e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Summary() }
	require.Equal(t, "no node has GPUs registered", summary())
	e.SetNode(&scheduler.Node{Name: "without"})
	e.SetNode(nodeOf("a", with(h100(0, 0), cordoned)))
	require.Equal(t, "0 of 1 node with GPUs fit: 1: GPUs are cordoned. For example a: 1 GPU: 1 cordoned", summary())
	e.SetNode(nodeOf("b", with(h100(1, 0), a100)))
	e.SetNode(nodeOf("c", with(h100(2, 0), a100)))
	require.Equal(t, "0 of 3 nodes with GPUs fit: 2: GPUs have too little free memory, 1: GPUs are cordoned."+
		" For example b: 1 GPU: 1 with less than 50000 MiB free (most: 40000 MiB)", summary())
	e.SetNode(nodeOf("d", h100(3, 0)))
	require.Empty(t, summary())
}

// The GPU that the pod names is not healthy, and the others are more.
func TestSummaryHasEachReason(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", with(h100(0, 0), sick), h100(0, 1), h100(0, 2)))
	p := podOf("u", "1/50000/0")
	p.Annotations["nvidia.com/use-gpuuuid"] = uuid(0, 0)
	require.Equal(t, "0 of 1 node with GPUs fit: 1: GPUs are not healthy, 1: GPUs are excluded by UUID."+
		" For example a: 3 GPUs: 2 with a UUID that the pod excludes, 1 not healthy", e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Summary())
}

func TestUnknownPolicy(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100(0, 0)))
	p := podOf("u", "1/1/0")
	r := requestOf(t, e, p)
	r.Rules.GPUPolicy, r.Signature = "best", "another"
	v := e.Evaluate(e.Snapshot(), p, r)
	require.ErrorContains(t, v.Err(), `unknown policy "best"`)
	verdict := v.Verdict("a")
	require.False(t, verdict.Fits)
	require.Contains(t, verdict.Text(), `unknown policy "best"`)
	require.Contains(t, v.Summary(), `unknown policy "best"`)
	_, err := e.Reserve(p, r, "a", "test")
	require.ErrorContains(t, err, `unknown policy "best"`)
	_, err = New(Options{GPUPolicy: "best"})
	require.ErrorContains(t, err, `unknown policy "best"`)
}

func TestCodes(t *testing.T) {
	for code := range codes {
		require.NotEmpty(t, code.String())
		require.NotEmpty(t, code.Brief())
	}
	require.Equal(t, "Code(200)", Code(200).Brief())
	require.Equal(t, "CardUuidMismatch", CardUUIDMismatch.String(), "HAMi's spelling")
	require.Equal(t, "CardCordoned", GPUCordoned.String(), "HAMi's name")
	counts := Counts{GPUCordoned: 2, CardInsufficientMemory: 2, CardInsufficientCore: 1}
	require.Equal(t, CardInsufficientMemory, counts.Main())
}

// TestSignaturesAreBounded: what is kept of requests doesn't grow with their number.
func TestSignaturesAreBounded(t *testing.T) {
	e := newEngine(t, Options{Signatures: 2})
	e.SetNode(nodeOf("a", h100(0, 0)))
	for _, shape := range []string{"1/1/0", "1/2/0", "1/1/0", "1/3/0", "1/4/0"} {
		p := podOf("u", shape)
		e.Evaluate(e.Snapshot(), p, requestOf(t, e, p))
	}
	require.Len(t, e.verdicts.entries, 2)
	require.Equal(t, 2, e.verdicts.used.Len())
	require.Contains(t, e.verdicts.entries, requestOf(t, e, podOf("u", "1/4/0")).Signature)
}
