package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

func TestOverlay(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("n", h100(0, 0)))
	victim := podOf("victim", "1/60000/0")
	e.SetPod(place(t, e, victim, "n"))
	before := dump(e)
	p := podOf("u", "1/50000/0")
	s := e.Snapshot()
	v := e.Evaluate(s, p, requestOf(t, e, p))
	fits := func(o *Overlay) bool {
		verdict := v.On(o, "n")
		return verdict.Fits
	}
	require.False(t, fits(s.Overlay()))
	without := s.Overlay().Without("n", "victim")
	require.True(t, fits(without))
	require.False(t, fits(e.With(without, "n", victim, requestOf(t, e, victim))), "it is there again")
	require.True(t, fits(without), "an overlay is not changed by what is made of it")
	require.False(t, fits(s.Overlay().Without("n", "unknown")))
	require.False(t, fits(s.Overlay().Without("nowhere", "victim")))

	t.Run("a nominated pod has its GPUs", func(t *testing.T) {
		nominated := podOf("nominated", "1/40000/0")
		o := e.With(without, "n", nominated, requestOf(t, e, nominated))
		require.False(t, fits(o))
		require.True(t, fits(o.Without("n", "nominated")))
		require.False(t, fits(e.With(o, "n", nominated, requestOf(t, e, nominated)).Without("n", "unknown")), "once only")
	})
	t.Run("a nominated pod that waits for its victims keeps others out", func(t *testing.T) {
		nominated, small := podOf("nominated", "1/70000/0"), podOf("small", "1/10000/0")
		v := e.Evaluate(s, small, requestOf(t, e, small))
		free := v.On(s.Overlay(), "n")
		require.True(t, free.Fits)
		verdict := v.On(e.With(s.Overlay(), "n", nominated, requestOf(t, e, nominated)), "n")
		require.False(t, verdict.Fits)
	})
	t.Run("pods without GPUs change nothing", func(t *testing.T) {
		require.Equal(t, without, e.With(without, "n", podOf("plain", "0/0/0"), nil))
	})
	require.Equal(t, before, dump(e), "nothing of it is real")
}

func TestOverlayWithQuota(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("n", h100s(0, 2)...))
	e.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 60000, Cores: quota.Unlimited}})
	e.SetPod(place(t, e, podOf("victim", "1/60000/0"), "n"))
	p := podOf("u", "1/50000/0")
	v := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p))
	verdict := v.On(e.Snapshot().Overlay(), "n")
	require.Equal(t, ResourceQuotaNotFit, verdict.Reason())
	verdict = v.On(e.Snapshot().Overlay().Without("n", "victim"), "n")
	require.True(t, verdict.Fits, verdict.Text())
}

func TestVictims(t *testing.T) {
	for _, tc := range []struct {
		name       string
		gpus       []scheduler.GPU
		before     []string // a, b, …: the most important first
		pod        []string
		candidates []string
		want       []string
		ok         bool
	}{
		{"none are needed", h100s(0, 1), []string{"1/10000/0"}, []string{"1/10000/0"}, []string{"a"}, nil, true},
		{"memory: the least important that is enough", h100s(0, 1), []string{"1/30000/0", "1/30000/0", "1/20000/0"}, []string{"1/20000/0"}, []string{"a", "b", "c"},
			[]string{"c"}, true},
		{"one large one rather than none that is enough", h100s(0, 1), []string{"1/60000/0", "1/20000/0"}, []string{"1/30000/0"}, []string{"a", "b"}, []string{"a"}, true},
		{"cores", h100s(0, 1), []string{"1/1/50", "1/1/50"}, []string{"1/1/20"}, []string{"a", "b"}, []string{"b"}, true},
		{"replicas", []scheduler.GPU{with(h100(0, 0), func(c *scheduler.GPU) { c.Replicas = 2 })}, []string{"1/1/1", "1/1/1"}, []string{"1/1/1"}, []string{"a", "b"}, []string{"b"}, true},
		{"a whole GPU", h100s(0, 2), []string{"1/1/1", "1/1/1", "1/1/1"}, []string{"1/-100/100"}, []string{"a", "b", "c"}, []string{"b"}, true},
		{"others stay", h100s(0, 1), []string{"1/60000/0", "1/20000/0"}, []string{"1/30000/0"}, []string{"b"}, nil, false},
		{"never enough", h100s(0, 1), []string{"1/60000/0"}, []string{"1/90000/0"}, []string{"a"}, nil, false},
		{"a pod without GPUs is no victim", h100s(0, 1), []string{"1/60000/0"}, []string{"1/30000/0"}, []string{"unknown", "a"}, []string{"a"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEngine(t, Options{})
			e.SetNode(nodeOf("n", tc.gpus...))
			for i, shape := range tc.before {
				e.SetPod(place(t, e, podOf(string(rune('a'+i)), shape), "n"))
			}
			p := podOf("u", tc.pod...)
			v := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p))
			victims, ok := v.Victims(e.Snapshot().Overlay(), "n", tc.candidates)
			require.Equal(t, tc.ok, ok)
			require.Equal(t, tc.want, victims)
		})
	}
}

// TestVictimsAreFew: without the victims the pod fits, and none of them can stay.
func TestVictimsAreFew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEngine(t, Options{})
		e.SetNode(nodeOf("n", drawGPU(t, 0, 0), drawGPU(t, 0, 1)))
		var candidates []string
		for i := range rapid.IntRange(1, 6).Draw(t, "pods") {
			p := podOf(fmt.Sprint(i), drawContainer(t, 1))
			if _, err := e.Reserve(p, requestOf(t, e, p), "n", "test"); err == nil {
				candidates = append(candidates, p.UID)
			}
		}
		p := podOf("u", drawContainer(t, 2))
		s := e.Snapshot()
		v := e.Evaluate(s, p, requestOf(t, e, p))
		victims, ok := v.Victims(s.Overlay(), "n", candidates)
		without := func(uids []string) bool {
			o := s.Overlay()
			for _, uid := range uids {
				o = o.Without("n", uid)
			}
			verdict := v.On(o, "n")
			return verdict.Fits
		}
		if ok != without(candidates) {
			t.Fatalf("ok is %v", ok)
		}
		if !ok {
			return
		}
		if !without(victims) {
			t.Fatalf("%v are too few", victims)
		}
		for i := range victims {
			fewer := append(append([]string{}, victims[:i]...), victims[i+1:]...)
			if without(fewer) {
				t.Fatalf("%v are too many: %v are enough", victims, fewer)
			}
		}
	})
}
