package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

// used is what is taken of a node's GPU, on the newest state.
func used(e *Engine, node string, gpu int) scheduler.Use {
	return e.Snapshot().node(node).used[gpu]
}

func TestLifeOfAPod(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100s(0, 2)...))
	before := e.State("")
	p := podOf("u1", "1/8000/30")
	placement, err := e.Reserve(p, requestOf(t, e, p), "a", "test")
	require.NoError(t, err)
	require.Equal(t, [][]grant.Share{{{UUID: uuid(0, 0), MemoryMiB: 8000, CorePercent: 30}}}, placement.Containers)
	taken := scheduler.Use{MemoryMiB: 8000, Cores: 30, Replicas: 1}
	require.Equal(t, taken, used(e, "a", 0), "reserved")

	again, err := e.Reserve(p, requestOf(t, e, p), "a", "test")
	require.NoError(t, err)
	require.Equal(t, placement, again, "the same again")
	version := e.Snapshot().version
	written := given(t, p, placement)
	e.SetPod(bindTo(written, "a"))
	require.Equal(t, taken, used(e, "a", 0), "bound, and counted once")
	require.Equal(t, version, e.Snapshot().version, "confirming a reservation evaluates no node again")
	require.Equal(t, "bound", e.State("a").Nodes[0].Pods[0].Phase)

	e.Unreserve("u1", "test")
	require.Equal(t, taken, used(e, "a", 0), "a bound pod keeps its GPUs")
	_, err = e.Reserve(p, requestOf(t, e, p), "b", "test")
	require.ErrorIs(t, err, ErrBound)

	ended := *bindTo(written, "a")
	ended.Ended = true
	e.SetPod(&ended)
	require.Equal(t, before, e.State(""))
	e.DeletePod("u1")
	require.Empty(t, e.pods)
}

func TestReservationsEnd(t *testing.T) {
	c := newClock()
	e := newEngine(t, Options{Clock: c.Now, ReservationTTL: time.Minute})
	e.SetNode(nodeOf("a", h100(0, 0)))
	free := scheduler.Use{}
	reserve := func(uid string) scheduler.Placement {
		p := podOf(uid, "1/50000/0")
		placement, err := e.Reserve(p, requestOf(t, e, p), "a", "test")
		require.NoError(t, err)
		return placement
	}
	placement := reserve("u1")
	c.add(59 * time.Second)
	require.NotEqual(t, free, e.Snapshot().node("a").used[0])
	c.add(2 * time.Second)
	require.Equal(t, free, e.Snapshot().node("a").used[0], "not confirmed in time")
	require.EqualValues(t, 1, e.Stats().Expired)

	t.Run("the pod was bound all the same", func(t *testing.T) {
		e.SetPod(bindTo(given(t, podOf("u1", "1/50000/0"), placement), "a"))
		require.EqualValues(t, 50000, used(e, "a", 0).MemoryMiB)
		c.add(time.Hour)
		require.EqualValues(t, 50000, e.Snapshot().node("a").used[0].MemoryMiB, "a bound pod has no end")
		e.DeletePod("u1")
	})
	t.Run("repeated, it lives longer", func(t *testing.T) {
		reserve("u2")
		c.add(40 * time.Second)
		reserve("u2")
		c.add(40 * time.Second)
		require.EqualValues(t, 50000, e.Snapshot().node("a").used[0].MemoryMiB)
		c.add(40 * time.Second)
		require.Equal(t, free, e.Snapshot().node("a").used[0])
	})
	t.Run("nothing is kept of those that have ended", func(t *testing.T) {
		p := podOf("u3", "1/50000/0")
		e.DeletePod("u3") // its event comes before a bind that is under way looks at it
		for range 1000 {
			_, err := e.Reserve(p, requestOf(t, e, p), "a", "test")
			require.NoError(t, err)
		}
		require.Len(t, e.reservations, 1, "a repeated reservation is one")
		e.Unreserve("u3", "test")
		reserve("u4")
		require.Len(t, e.reservations, 1)
		c.add(time.Hour)
		e.Snapshot()
		e.SetPod(place(t, e, podOf("u5", "1/50000/0"), "a"))
		require.Empty(t, e.reservations, "one that was bound doesn't wait any more")
		e.DeletePod("u5")
		require.Empty(t, e.pods)
		require.Zero(t, e.soonest.Load())
	})
}

// TestEventsOfAPendingPod is of all that may become of a waiting pod's object while its bind
// is under way: nothing of it gives back the GPUs.
func TestEventsOfAPendingPod(t *testing.T) {
	elsewhere := scheduler.Placement{Node: "b", Containers: [][]grant.Share{{{UUID: uuid(1, 0), MemoryMiB: 50000}}}}
	for name, event := range map[string]func(p *scheduler.Pod, own scheduler.Placement) *scheduler.Pod{
		"nothing":               func(p *scheduler.Pod, _ scheduler.Placement) *scheduler.Pod { return p },
		"a label":               func(p *scheduler.Pod, _ scheduler.Placement) *scheduler.Pod { return labelled(p) },
		"its own annotations":   func(p *scheduler.Pod, own scheduler.Placement) *scheduler.Pod { return given(t, p, own) },
		"those of another node": func(p *scheduler.Pod, _ scheduler.Placement) *scheduler.Pod { return given(t, p, elsewhere) },
		"what can't be read": func(p *scheduler.Pod, _ scheduler.Placement) *scheduler.Pod {
			return annotated(p, map[string]string{api.AnnotationGrant: "{"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, Options{})
			e.SetNode(nodeOf("a", h100(0, 0)))
			e.SetNode(nodeOf("b", h100(1, 0)))
			p := podOf("u", "1/50000/0")
			placement, err := e.Reserve(p, requestOf(t, e, p), "a", "test")
			require.NoError(t, err)
			before := dump(e)
			for range 2 {
				e.SetPod(event(p, placement))
				require.Equal(t, before, dump(e))
				e.SetPod(p)
				require.Equal(t, before, dump(e))
			}
			require.Empty(t, e.Problems())
			e.Unreserve("u", "test")
			e.SetPod(event(p, placement))
			require.Empty(t, e.AllocatedNode("u"), "nor does it take any")
			require.Empty(t, e.pods)
		})
	}
}

func labelled(p *scheduler.Pod) *scheduler.Pod {
	next := *p
	next.Labels = map[string]string{"more": "labels"}
	return &next
}

// TestEventsOfABoundPod is of all that may become of its object: it keeps its GPUs, and no others.
func TestEventsOfABoundPod(t *testing.T) {
	for name, tt := range map[string]struct {
		event   func(p *scheduler.Pod) *scheduler.Pod
		problem string
	}{
		"a label": {labelled, ""},
		"other GPUs": {func(p *scheduler.Pod) *scheduler.Pod {
			return given(t, p, scheduler.Placement{Node: "a", Containers: [][]grant.Share{{{UUID: uuid(0, 1), MemoryMiB: 1}}}})
		}, "its annotations were changed after it was bound"},
		"no annotations": {func(p *scheduler.Pod) *scheduler.Pod {
			next := *p
			next.Annotations = nil
			return &next
		}, "its annotations were removed"},
		"unreadable ones": {func(p *scheduler.Pod) *scheduler.Pod {
			return annotated(p, map[string]string{api.AnnotationGrant: "{"})
		}, "not valid JSON"},
		"no node": {func(p *scheduler.Pod) *scheduler.Pod { return bindTo(p, "") }, "it was bound and is no longer"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, Options{})
			e.SetNode(nodeOf("a", h100s(0, 2)...))
			p := place(t, e, podOf("u", "1/50000/0"), "a")
			e.SetPod(p)
			before := dump(e)
			e.SetPod(tt.event(p))
			require.Equal(t, before, dump(e))
			problems := e.Problems()
			require.Equal(t, len(problems), e.Stats().Problems)
			if tt.problem == "" {
				require.Empty(t, problems)
				return
			}
			require.Len(t, problems, 1)
			require.Contains(t, problems[0].Text, tt.problem)
			e.SetPod(p)
			require.Empty(t, e.Problems(), "fixed")
		})
	}
}

// TestReservationOnMissingGPUs: a repeated request does not get a GPU that has failed since.
func TestReservationOnMissingGPUs(t *testing.T) {
	for name, now := range map[string][]scheduler.GPU{
		"gone":     {h100(0, 1)},
		"sick":     {with(h100(0, 0), sick), h100(0, 1)},
		"cordoned": {with(h100(0, 0), func(c *scheduler.GPU) { c.Cordoned = true }), h100(0, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, Options{})
			e.SetNode(nodeOf("a", h100s(0, 2)...))
			p := podOf("u", "1/50000/0")
			first, err := e.Reserve(p, requestOf(t, e, p), "a", "test")
			require.NoError(t, err)
			require.Equal(t, uuid(0, 0), first.Containers[0][0].UUID)
			e.SetNode(nodeOf("a", now...))
			second, err := e.Reserve(p, requestOf(t, e, p), "a", "test")
			require.NoError(t, err)
			require.Equal(t, uuid(0, 1), second.Containers[0][0].UUID)
			require.Equal(t, 1, e.Stats().Reservations)
		})
	}
}

// TestBoundWithoutGPUs is of a pod that another scheduler bound: it has no
// GPUs, and only the node would notice.
func TestBoundWithoutGPUs(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetPod(bindTo(podOf("u", "1/50000/0"), "a"))
	plain := podOf("plain", "0/0/0")
	e.SetPod(bindTo(plain, "a"))
	require.Empty(t, e.Problems(), "there are no GPUs of ours: it has those of another system")
	e.SetNode(nodeOf("a", h100(0, 0)))
	require.Len(t, e.Problems(), 1)
	require.Equal(t, 1, e.Stats().Problems)
	require.Contains(t, e.Problems()[0].Text, "it is on node a, requests GPUs and was granted none")
	e.DeletePod("u")
	require.Empty(t, e.Problems())
	require.Empty(t, e.pods)
	require.Empty(t, e.problemPods)
}

func TestUnreserve(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100(0, 0)))
	e.SetNode(nodeOf("b", h100(1, 0)))
	p := podOf("u1", "1/50000/0")
	r := requestOf(t, e, p)
	_, err := e.Reserve(p, r, "a", "plugin")
	require.NoError(t, err)
	e.Unreserve("u1", "extender")
	require.Equal(t, "a", e.AllocatedNode("u1"), "another's reservation")
	e.Unreserve("u1", "plugin")
	require.Empty(t, e.AllocatedNode("u1"))

	_, err = e.Reserve(p, r, "a", "plugin")
	require.NoError(t, err)
	_, err = e.Reserve(p, r, "b", "plugin")
	require.NoError(t, err)
	require.Equal(t, "b", e.AllocatedNode("u1"), "a reservation moves with the pod")
	require.Equal(t, scheduler.Use{}, used(e, "a", 0))
	e.SetPod(p)
	require.Equal(t, "b", e.AllocatedNode("u1"), "its annotations have not come yet")
	e.SetPod(bindTo(p, "a"))
	require.Empty(t, e.AllocatedNode("u1"), "another scheduler bound it to another node")
}

func TestDoesNotFit(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100(0, 0)))
	place(t, e, podOf("u1", "1/50000/0"), "a")
	p := podOf("u2", "1/50000/0")
	_, err := e.Reserve(p, requestOf(t, e, p), "a", "test")
	require.ErrorIs(t, err, ErrNoFit)
	var noRoom *NoFitError
	require.True(t, errors.As(err, &noRoom))
	require.Equal(t, CardInsufficientMemory, noRoom.Verdict.Reason())
	require.EqualError(t, err, "a: 1 GPU: 1 with less than 50000 MiB free (most: 30000 MiB)")
	require.EqualValues(t, 1, e.Stats().Refused)
	_, err = e.Reserve(p, requestOf(t, e, p), "nowhere", "test")
	require.EqualError(t, err, "nowhere: unknown node")
}

func TestPodsBeforeTheirNodes(t *testing.T) {
	e := newEngine(t, Options{})
	p := bindTo(given(t, podOf("u1", "1/50000/0"), scheduler.Placement{Node: "a", Containers: [][]grant.Share{{{UUID: uuid(0, 1), MemoryMiB: 50000}}}}), "a")
	e.SetPod(p)
	require.Empty(t, e.Snapshot().Nodes())
	e.SetNode(nodeOf("a", h100(0, 0)))
	require.Equal(t, scheduler.Use{}, used(e, "a", 0), "not this GPU")
	e.SetNode(nodeOf("a", h100s(0, 2)...))
	require.EqualValues(t, 50000, used(e, "a", 1).MemoryMiB, "now its GPU is there")
	e.DeleteNode("a")
	e.SetNode(nodeOf("a", h100(0, 1)))
	require.EqualValues(t, 50000, used(e, "a", 0).MemoryMiB, "the node came back, and the GPU at another position")
	e.DeleteNode("a")
	e.DeletePod("u1")
	require.Empty(t, e.State("").Nodes)
	e.SetNode(nodeOf("b", h100(1, 0)))
	require.Equal(t, 1, e.rows, "the row of a node that is gone is used again")
}

func TestProblems(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100(0, 0)))
	e.SetNode(&scheduler.Node{Name: "broken", Annotations: map[string]string{"gpuslice.io/node-gpus": "{"}})
	good := bindTo(given(t, podOf("good", "1/50000/0"), scheduler.Placement{Node: "a", Containers: [][]grant.Share{{{UUID: uuid(0, 0), MemoryMiB: 50000}}}}), "a")
	e.SetPod(good)
	texts := func() (all []string) {
		for _, p := range e.Problems() {
			all = append(all, p.Node+p.Pod)
		}
		return all
	}
	bad := annotated(bindTo(podOf("bad", "1/50000/0"), "a"), map[string]string{api.AnnotationGrant: "{"})
	e.SetPod(bad)
	require.Equal(t, []string{"ns/pod-bad", "broken"}, texts())
	require.EqualValues(t, 50000, used(e, "a", 0).MemoryMiB, "invalid annotations reserve nothing")

	e.SetPod(annotated(good, map[string]string{api.AnnotationGrant: "{"}))
	require.Equal(t, []string{"ns/pod-bad", "ns/pod-good", "broken"}, texts())
	require.EqualValues(t, 50000, used(e, "a", 0).MemoryMiB, "its containers run with what they were given")
	e.SetPod(bindTo(podOf("good", "1/50000/0"), "a"))
	require.Equal(t, "a", e.AllocatedNode("good"), "nor do they when the annotations are taken away")
	e.SetPod(good)
	e.DeletePod("bad")
	require.Equal(t, []string{"broken"}, texts())

	p := podOf("u", "1/1/0")
	verdict := e.Evaluate(e.Snapshot(), p, requestOf(t, e, p)).Verdict("broken")
	require.Contains(t, verdict.Text(), "broken: the node's GPUs can't be read: ")

	e.SetPod(bindTo(given(t, podOf("more", "1/50000/0"), scheduler.Placement{Node: "a", Containers: [][]grant.Share{{{UUID: uuid(0, 0), MemoryMiB: 50000}}}}), "a"))
	require.Contains(t, texts(), "a", "more is taken than there is")
}

// late are keys that are not there yet: nothing can be verified with them.
type late struct{ there bool }

func (l *late) Verify(_, _, _, _ string) error {
	if !l.there {
		return grant.ErrSignature
	}
	return nil
}

// TestKeysAddedLater: the GPUs of a bound pod are taken, also if the keys do not verify its grant. Its failed
// verification is reported.
func TestKeysAddedLater(t *testing.T) {
	keys := &late{}
	e := newEngine(t, Options{Keys: keys})
	e.SetNode(nodeOf("a", h100(0, 0)))
	p := given(t, podOf("u", "1/50000/0"), scheduler.Placement{Node: "a", Containers: [][]grant.Share{{{UUID: uuid(0, 0), MemoryMiB: 50000}}}})
	p.Annotations[api.AnnotationSignature] = "of another key"
	e.SetPod(bindTo(p, "a"))
	require.EqualValues(t, 50000, used(e, "a", 0).MemoryMiB)
	require.Len(t, e.Problems(), 1)
	require.Contains(t, e.Problems()[0].Text, grant.ErrSignature.Error())
	other := podOf("other", "1/50000/0")
	_, err := e.Reserve(other, requestOf(t, e, other), "a", "test")
	require.ErrorIs(t, err, ErrNoFit)
	keys.there = true
	e.SetPod(bindTo(p, "a"))
	require.Empty(t, e.Problems())
	require.EqualValues(t, 50000, used(e, "a", 0).MemoryMiB)
}
