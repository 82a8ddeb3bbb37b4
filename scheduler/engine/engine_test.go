package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

// used is what is taken of a node's card, on the newest state.
func used(e *Engine, node string, card int) scheduler.Use {
	return e.Snapshot().node(node).used[card]
}

func TestLifeOfAPod(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100s(0, 2)...))
	before := e.State("")
	p := podOf("u1", "1/8000/30")
	placement, err := e.Reserve(p, ask4(t, e, p), "a", "test")
	require.NoError(t, err)
	require.Equal(t, [][]grant.Share{{{UUID: uuid(0, 0), MemoryMiB: 8000, CorePercent: 30}}}, placement.Containers)
	taken := scheduler.Use{MemoryMiB: 8000, Cores: 30, Slots: 1}
	require.Equal(t, taken, used(e, "a", 0), "reserved")

	again, err := e.Reserve(p, ask4(t, e, p), "a", "test")
	require.NoError(t, err)
	require.Equal(t, placement, again, "the same again")
	version := e.Snapshot().Version()
	written := given(t, p, placement)
	e.SetPod(written)
	require.Equal(t, taken, used(e, "a", 0), "confirmed, and counted once")
	e.SetPod(bindTo(written, "a"))
	require.Equal(t, taken, used(e, "a", 0), "bound")
	require.Equal(t, version, e.Snapshot().Version(), "what confirms a reservation makes no node be judged anew")
	require.Equal(t, "bound", e.State("a").Nodes[0].Pods[0].Phase)

	e.Unreserve("u1", "test")
	require.Equal(t, taken, used(e, "a", 0), "a bound pod keeps its cards")
	_, err = e.Reserve(p, ask4(t, e, p), "b", "test")
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
		placement, err := e.Reserve(p, ask4(t, e, p), "a", "test")
		require.NoError(t, err)
		return placement
	}
	placement := reserve("u1")
	c.add(59 * time.Second)
	require.NotEqual(t, free, e.Snapshot().node("a").used[0])
	c.add(2 * time.Second)
	require.Equal(t, free, e.Snapshot().node("a").used[0], "not confirmed in time")
	require.EqualValues(t, 1, e.Stats().Expired)

	t.Run("annotations that come after it hold nothing, unless the pod is bound", func(t *testing.T) {
		written := given(t, podOf("u1", "1/50000/0"), placement)
		e.SetPod(written)
		require.Equal(t, free, used(e, "a", 0))
		e.SetPod(bindTo(written, "a"))
		require.EqualValues(t, 50000, used(e, "a", 0).MemoryMiB)
		c.add(time.Hour)
		require.EqualValues(t, 50000, e.Snapshot().node("a").used[0].MemoryMiB, "a bound pod has no end")
		e.DeletePod("u1")
	})
	t.Run("asked for again it lives longer", func(t *testing.T) {
		reserve("u2")
		c.add(40 * time.Second)
		reserve("u2")
		c.add(40 * time.Second)
		require.EqualValues(t, 50000, e.Snapshot().node("a").used[0].MemoryMiB)
		c.add(40 * time.Second)
		require.Equal(t, free, e.Snapshot().node("a").used[0])
	})
	t.Run("annotations of a pod that waits hold for a reservation's time", func(t *testing.T) {
		e.SetPod(given(t, podOf("u3", "1/50000/0"), placement))
		require.EqualValues(t, 50000, used(e, "a", 0).MemoryMiB, "another scheduler may be binding it")
		c.add(time.Minute)
		require.Equal(t, free, e.Snapshot().node("a").used[0])
	})
	t.Run("annotations that confirm one don't make it longer", func(t *testing.T) {
		placement := reserve("u4")
		c.add(30 * time.Second)
		e.SetPod(given(t, podOf("u4", "1/50000/0"), placement))
		c.add(30 * time.Second)
		require.Equal(t, free, e.Snapshot().node("a").used[0])
	})
}

func TestUnreserve(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100(0, 0)))
	e.SetNode(nodeOf("b", h100(1, 0)))
	p := podOf("u1", "1/50000/0")
	r := ask4(t, e, p)
	first, err := e.Reserve(p, r, "a", "plugin")
	require.NoError(t, err)
	e.Unreserve("u1", "extender")
	require.Equal(t, "a", e.Holding("u1"), "another's reservation")
	e.Unreserve("u1", "plugin")
	require.Empty(t, e.Holding("u1"))
	e.SetPod(given(t, p, first))
	require.Empty(t, e.Holding("u1"), "its annotations came late")

	_, err = e.Reserve(p, r, "a", "plugin")
	require.NoError(t, err)
	_, err = e.Reserve(p, r, "b", "plugin")
	require.NoError(t, err)
	require.Equal(t, "b", e.Holding("u1"), "a reservation moves with the pod")
	require.Equal(t, scheduler.Use{}, used(e, "a", 0))
	e.SetPod(p)
	require.Equal(t, "b", e.Holding("u1"), "its annotations have not come yet")
	e.SetPod(bindTo(p, "a"))
	require.Empty(t, e.Holding("u1"), "somebody else has bound it to another node")
}

func TestNoRoom(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100(0, 0)))
	place(t, e, podOf("u1", "1/50000/0"), "a")
	p := podOf("u2", "1/50000/0")
	_, err := e.Reserve(p, ask4(t, e, p), "a", "test")
	require.ErrorIs(t, err, ErrNoRoom)
	var noRoom *NoRoomError
	require.True(t, errors.As(err, &noRoom))
	require.Equal(t, CardInsufficientMemory, noRoom.Verdict.Reason())
	require.EqualError(t, err, "a: 1 card: 1 with less than 50000 MiB free (most: 30000 MiB)")
	require.EqualValues(t, 1, e.Stats().Refused)
	_, err = e.Reserve(p, ask4(t, e, p), "nowhere", "test")
	require.EqualError(t, err, "nowhere: the node is not known")
}

func TestPodsBeforeTheirNodes(t *testing.T) {
	e := newEngine(t, Options{})
	p := bindTo(given(t, podOf("u1", "1/50000/0"), scheduler.Placement{Node: "a", Containers: [][]grant.Share{{{UUID: uuid(0, 1), MemoryMiB: 50000}}}}), "a")
	e.SetPod(p)
	require.Empty(t, e.Snapshot().Nodes())
	e.SetNode(nodeOf("a", h100(0, 0)))
	require.Equal(t, scheduler.Use{}, used(e, "a", 0), "not this card")
	e.SetNode(nodeOf("a", h100s(0, 2)...))
	require.EqualValues(t, 50000, used(e, "a", 1).MemoryMiB, "now its card is there")
	e.DeleteNode("a")
	e.SetNode(nodeOf("a", h100(0, 1)))
	require.EqualValues(t, 50000, used(e, "a", 0).MemoryMiB, "the node came back, and the card at another position")
	e.DeleteNode("a")
	e.DeletePod("u1")
	require.Empty(t, e.State("").Nodes)
	e.SetNode(nodeOf("b", h100(1, 0)))
	require.Equal(t, 1, e.slots, "a slot of a node that is gone is used again")
}

func TestProblems(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100(0, 0)))
	e.SetNode(&scheduler.Node{Name: "broken", Annotations: map[string]string{"gpuslice.io/node-cards": "{"}})
	good := bindTo(given(t, podOf("good", "1/50000/0"), scheduler.Placement{Node: "a", Containers: [][]grant.Share{{{UUID: uuid(0, 0), MemoryMiB: 50000}}}}), "a")
	e.SetPod(good)
	texts := func() (all []string) {
		for _, p := range e.Problems() {
			all = append(all, p.Node+p.Pod)
		}
		return all
	}
	bad := annotated(bindTo(podOf("bad", "1/50000/0"), "a"), map[string]string{grant.AnnotationGrant: "{"})
	e.SetPod(bad)
	require.Equal(t, []string{"ns/pod-bad", "broken"}, texts())
	require.EqualValues(t, 50000, used(e, "a", 0).MemoryMiB, "what can't be read holds nothing")

	e.SetPod(annotated(good, map[string]string{grant.AnnotationGrant: "{"}))
	require.Equal(t, []string{"ns/pod-bad", "ns/pod-good", "broken"}, texts())
	require.EqualValues(t, 50000, used(e, "a", 0).MemoryMiB, "its containers run with what they were given")
	e.SetPod(bindTo(podOf("good", "1/50000/0"), "a"))
	require.Equal(t, "a", e.Holding("good"), "nor do they when the annotations are taken away")
	e.SetPod(good)
	e.DeletePod("bad")
	require.Equal(t, []string{"broken"}, texts())

	p := podOf("u", "1/1/0")
	verdict := e.Evaluate(e.Snapshot(), p, ask4(t, e, p)).Verdict("broken")
	require.Contains(t, verdict.Text(), "broken: the node's cards can't be read: ")

	e.SetPod(bindTo(given(t, podOf("more", "1/50000/0"), scheduler.Placement{Node: "a", Containers: [][]grant.Share{{{UUID: uuid(0, 0), MemoryMiB: 50000}}}}), "a"))
	require.Contains(t, texts(), "a", "more is taken than there is")
}

// forged signs nothing.
type forged struct{}

func (forged) Verify(_, _, _, _ string) error { return grant.ErrSignature }

func TestForgedAnnotationsHoldNothing(t *testing.T) {
	e := newEngine(t, Options{Keys: forged{}})
	e.SetNode(nodeOf("a", h100(0, 0)))
	e.SetPod(bindTo(given(t, podOf("u", "1/50000/0"), scheduler.Placement{Node: "a", Containers: [][]grant.Share{{{UUID: uuid(0, 0), MemoryMiB: 50000}}}}), "a"))
	require.Equal(t, scheduler.Use{}, used(e, "a", 0))
	require.Len(t, e.Problems(), 1)
}
