package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/defrag"
	"github.com/gpuslice/gpuslice/scheduler/engine"
)

func TestPlan(t *testing.T) {
	want := defrag.Plan{Pod: "ns/p", Node: "n1", Moves: []defrag.Move{{Pod: "ns/a", UID: "u", From: "n1", To: "n2"}}, GPUs: []string{gpuA}}
	c, _ := of(map[string]any{"gpuslice/scheduler-n1:8080/debug/defrag": want}, server("scheduler", "n1", "http", 8080))
	plan, err := c.Plan(t.Context(), "ns", "p")
	require.NoError(t, err)
	require.Equal(t, want, plan)
	require.Equal(t, []string{"cordon GPU " + gpuA + " of node n1 until the pods are gone", "evict pod ns/a from node n1: it fits on node n2 then", "then pod ns/p fits on node n1"}, Steps(plan))
	c, _ = of(map[string]any{"gpuslice/scheduler-n1:8080/debug/defrag": errors.New("no resizes or moves make room")}, server("scheduler", "n1", "http", 8080))
	_, err = c.Plan(t.Context(), "ns", "p")
	require.ErrorContains(t, err, "no resizes or moves make room")
}

// The pods of a plan are resized and evicted, and the pending pod is waited for.
func TestCarry(t *testing.T) {
	pending := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	small, moved := granted(t, "small", "n1", grant.Share{UUID: gpuA, MemoryMiB: 8000}), granted(t, "moved", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1})
	c, client := of(nil, pending, small, moved, node("n1", gpuA, gpuB), server("scheduler", "n1", "http", 8080))
	readBySchedulers(t, c, client)
	cordoned := func() string {
		n, err := client.Tracker().Get(v1.SchemeGroupVersion.WithResource("nodes"), "", "n1")
		require.NoError(t, err)
		return n.(*v1.Node).Annotations[api.AnnotationHAMiCordon]
	}
	_, err := c.Cordon(t.Context(), "n1", gpuB, true)
	require.NoError(t, err)
	scheduling(client, func(string) (grant.ResizeStatus, string) {
		return grant.ResizeStatus{Outcome: grant.ResizeReserved}, ""
	})
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e, ok := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if !ok {
			return false, nil, nil
		}
		require.Equal(t, gpuB+","+gpuA, cordoned())
		require.NoError(t, client.Tracker().Delete(a.GetResource(), "ns", e.Name))
		placed := pending.DeepCopy()
		placed.Spec.NodeName = "n1"
		return true, e, client.Tracker().Update(a.GetResource(), placed, "ns")
	})
	failures := 0
	client.PrependReactor("get", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.(clienttesting.GetAction).GetName() == "p" && failures < 2 {
			failures++
			return true, nil, apierrors.NewServiceUnavailable("a restart")
		}
		return false, nil, nil
	})
	var said []string
	how := Evictions{GracePeriod: -1, pause: time.Millisecond, Report: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}
	plan := defrag.Plan{Pod: "ns/p", Node: "n1",
		Resizes: []defrag.Resize{{Pod: "ns/small", UID: string(small.UID), MemoryMiB: map[string]int64{"main": 4000}}},
		Moves:   []defrag.Move{{Pod: "ns/moved", UID: string(moved.UID), From: "n1", To: "n2"}}, GPUs: []string{gpuA, gpuB}}
	require.NoError(t, c.Carry(t.Context(), plan, how))
	require.Equal(t, []string{"pod ns/small is resized", "pod ns/moved is evicted", "pod ns/moved is gone", "pod ns/p is placed on node n1"}, said)
	require.Equal(t, gpuB, cordoned(), "an operator's cordon stays")
	require.Equal(t, 2, failures, "the API server that does not answer is asked again")
	again, cancel := context.WithCancel(t.Context())
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, apierrors.NewServiceUnavailable("a restart")
	})
	err = c.Carry(again, defrag.Plan{Pod: "ns/p"}, how)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "a restart")
	client.ReactionChain = client.ReactionChain[1:]
	require.NoError(t, client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "ns", "p"))
	require.ErrorContains(t, c.Carry(t.Context(), defrag.Plan{Pod: "ns/p"}, how), "not found")
	plan.Resizes[0].UID = "another"
	require.ErrorContains(t, c.Carry(t.Context(), plan, how), "created again since the plan")
}

// What is cordoned for evictions is uncordoned also when they end early.
func TestCarryUncordons(t *testing.T) {
	c, client := of(nil, granted(t, "moved", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1}), node("n1", gpuA), server("scheduler", "n1", "http", 8080))
	readBySchedulers(t, c, client)
	ctx, cancel := context.WithCancel(t.Context())
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, apierrors.NewTooManyRequests("a budget", 1)
	})
	how := Evictions{GracePeriod: -1, pause: time.Millisecond, Report: func(string, ...any) {}}
	err := c.Carry(ctx, defrag.Plan{Pod: "ns/p", Node: "n1", Moves: []defrag.Move{{Pod: "ns/moved", From: "n1", To: "n1"}}, GPUs: []string{gpuA}}, how)
	require.ErrorContains(t, err, "a budget")
	n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, n.Annotations[api.AnnotationHAMiCordon])
}

// readBySchedulers makes schedulers serve the state of an engine with the node n1. It returns the names of those that have answered
// with the newest node; those that are late read it when they are asked for the fourth time, or never.
func readBySchedulers(t *testing.T, c *Cluster, client *fake.Clientset, late ...string) (read func() []string) {
	t.Helper()
	get := func() *v1.Node {
		n, err := client.Tracker().Get(v1.SchemeGroupVersion.WithResource("nodes"), "", "n1")
		require.NoError(t, err)
		return n.(*v1.Node)
	}
	before, asked, done := get(), map[string]int{}, map[string]bool{}
	c.get = func(_ context.Context, _, pod, path string, query map[string]string) ([]byte, error) {
		require.Equal(t, "/debug/state", path)
		require.Equal(t, map[string]string{"node": "n1", "format": "json"}, query)
		name, _, _ := strings.Cut(pod, ":")
		n := get()
		if asked[name]++; slices.Contains(late, name) && asked[name] < 4 || slices.Contains(late, "never") {
			n = before
		} else {
			done[name] = true
		}
		e, err := engine.New(engine.Options{})
		require.NoError(t, err)
		e.SetNode(convert.Node(n))
		return json.Marshal(e.State("n1"))
	}
	return func() []string { return slices.Sorted(maps.Keys(done)) }
}

// No pod is evicted before the schedulers know that its GPUs are cordoned.
func TestCarryWaitsForSchedulers(t *testing.T) {
	for name, test := range map[string]struct {
		late []string
		want []string
		note string
	}{
		"late":  {[]string{"scheduler-n2"}, []string{"scheduler-n1", "scheduler-n2"}, ""},
		"never": {[]string{"never"}, nil, "after 15s not all schedulers have read the cordons of node n1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				moved := granted(t, "moved", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1})
				c, client := of(nil, moved, node("n1", gpuA, gpuB), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: v1.PodSpec{NodeName: "n1"}},
					server("scheduler", "n1", "http", 8080), server("scheduler", "n2", "http", 8080))
				read := readBySchedulers(t, c, client, test.late...)
				evicting(client, func(*policyv1.Eviction) error {
					require.Equal(t, test.want, read())
					return nil
				})
				var said []string
				how := Evictions{GracePeriod: -1, Report: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}
				plan := defrag.Plan{Pod: "ns/p", Node: "n1", Moves: []defrag.Move{{Pod: "ns/moved", UID: string(moved.UID), From: "n1", To: "n2"}}, GPUs: []string{gpuA, gpuB}}
				require.NoError(t, c.Carry(t.Context(), plan, how))
				if test.note != "" {
					require.Contains(t, said[0], test.note)
					require.Contains(t, said[0], "scheduler gpuslice/scheduler-n2: GPU "+gpuA+" is not shown as cordoned")
					said = said[1:]
				}
				require.Equal(t, []string{"pod ns/moved is evicted", "pod ns/moved is gone", "pod ns/p is placed on node n1"}, said)
			})
		})
	}
}

// defragged is a plan to move a pod from a GPU that an eviction budget delays once, and a function that carries it out. What
// happens meanwhile is between the two tries.
func defragged(t *testing.T, meanwhile func(c *Cluster)) (c *Cluster, now func() cordons, plan defrag.Plan, carry func(context.Context) error) {
	t.Helper()
	moved := granted(t, "moved", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1})
	c, client := of(nil, moved, node("n1", gpuA, gpuB), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: v1.PodSpec{NodeName: "n1"}},
		server("scheduler", "n1", "http", 8080))
	readBySchedulers(t, c, client)
	tries := 0
	evicting(client, func(*policyv1.Eviction) error {
		if tries++; tries == 1 {
			return apierrors.NewTooManyRequests("a budget", 1)
		}
		return nil
	})
	now = func() cordons {
		n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		require.NoError(t, err)
		return cordonsOf(n)
	}
	plan = defrag.Plan{Pod: "ns/p", Node: "n1", Moves: []defrag.Move{{Pod: "ns/moved", UID: string(moved.UID), From: "n1", To: "n2"}}, GPUs: []string{gpuA}}
	once := sync.OnceFunc(func() { meanwhile(c) })
	how := Evictions{GracePeriod: -1, pause: time.Millisecond, Report: func(format string, _ ...any) {
		if strings.Contains(format, "cannot be evicted yet") {
			once()
		}
	}}
	return c, now, plan, func(ctx context.Context) error { return c.Carry(ctx, plan, how) }
}

func TestCarryKeepsAnOperatorsCordon(t *testing.T) {
	_, now, _, carry := defragged(t, func(c *Cluster) {
		changed, err := c.Cordon(t.Context(), "n1", gpuA, true)
		require.NoError(t, err)
		require.True(t, changed, "it was the defrag's before")
	})
	require.NoError(t, carry(t.Context()))
	require.Equal(t, cordons{[]string{gpuA}, map[string]mark{}}, now())
}

func TestCarryKeepsTheCordonOfAnotherDefrag(t *testing.T) {
	later := mark{Pod: "ns/p", ID: "later", Until: time.Now().Add(time.Hour).UTC().Truncate(time.Second)}
	_, now, _, carry := defragged(t, func(c *Cluster) { require.NoError(t, c.hold(t.Context(), "n1", []string{gpuA}, later)) })
	require.NoError(t, carry(t.Context()))
	require.Equal(t, cordons{[]string{gpuA}, map[string]mark{gpuA: later}}, now(), "of the same pod: it took the GPU over")
}

func TestCarryRefusesTheGPUsOfAnotherDefrag(t *testing.T) {
	c, now, plan, carry := defragged(t, func(c *Cluster) {
		other := defrag.Plan{Pod: "ns/other", Node: "n1", Moves: []defrag.Move{{Pod: "ns/moved", UID: "uid-moved"}}, GPUs: []string{gpuB, gpuA}}
		err := c.Carry(t.Context(), other, Evictions{Report: func(format string, args ...any) { t.Errorf(format, args...) }})
		require.ErrorContains(t, err, "room is being made for pod ns/p, until ")
		require.ErrorContains(t, err, "kubectl gpuslice uncordon n1 "+gpuA)
	})
	require.NoError(t, carry(t.Context()))
	require.Empty(t, now().uuids)

	ended := mark{Pod: "ns/other", ID: "ended", Until: time.Now().Add(-time.Second)}
	require.NoError(t, c.hold(t.Context(), "n1", plan.GPUs, ended))
	require.NoError(t, carry(t.Context()), "the other one has ended without removing it")
	require.Empty(t, now().uuids)
}

// A signal ends ctx.
func TestCarrySaysThatItUncordons(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, now, plan, _ := defragged(t, nil)
	var said []string
	how := Evictions{GracePeriod: -1, pause: time.Hour, Report: func(format string, args ...any) {
		said = append(said, fmt.Sprintf(format, args...))
		cancel()
	}}
	require.ErrorContains(t, c.Carry(ctx, plan, how), "a budget")
	require.Contains(t, said, "GPU "+gpuA+" of node n1 is uncordoned, then defrag ends: another signal would keep it cordoned")
	require.Empty(t, now().uuids)
}

// The API server carries out writes, and their answers are lost.
func TestCarryUncordonsAfterLostAnswers(t *testing.T) {
	moved := granted(t, "moved", "n1", grant.Share{UUID: gpuA, MemoryMiB: 1})
	c, client := of(nil, moved, node("n1", gpuA))
	lost, writes := apierrors.NewServerTimeout(v1.Resource("nodes"), "patch", 1), 0
	client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if writes++; writes == 2 {
			return true, nil, lost
		}
		_, _, err := clienttesting.ObjectReaction(client.Tracker())(a)
		require.NoError(t, err)
		return true, nil, lost
	})
	plan := defrag.Plan{Pod: "ns/p", Node: "n1", Moves: []defrag.Move{{Pod: "ns/moved", UID: string(moved.UID)}}, GPUs: []string{gpuA}}
	err := c.Carry(t.Context(), plan, Evictions{GracePeriod: -1, Report: func(format string, args ...any) { t.Errorf(format, args...) }})
	require.True(t, apierrors.IsServerTimeout(err), err)
	require.NotContains(t, err.Error(), "uncordon")
	n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, cordonsOf(n).uuids)
	require.Equal(t, 3, writes)

	own := mark{Pod: "ns/p", ID: "own"}
	require.True(t, apierrors.IsServerTimeout(c.hold(t.Context(), "n1", plan.GPUs, own)))
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource("nodes"), "n1", errors.New("the right has ended"))
	})
	require.ErrorContains(t, c.uncordon(t.Context(), plan, own), "may be cordoned still: run kubectl gpuslice uncordon n1 "+gpuA)
}

func TestClear(t *testing.T) {
	future, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	const gpuC, gpuD = "GPU-0c000000-1111-2222-3333-444455556666", "GPU-0d000000-1111-2222-3333-444455556666"
	c, client := of(nil, node("n1", gpuA, gpuB, gpuC, gpuD), node("n2", gpuB), server("scheduler", "n1", "http", 8080))
	readBySchedulers(t, c, client)
	require.NoError(t, c.hold(t.Context(), "n1", []string{gpuA}, mark{Pod: "ns/p", ID: "1", Until: future}))
	require.NoError(t, c.hold(t.Context(), "n1", []string{gpuB}, mark{Pod: "ns/q", ID: "2", Until: past}))
	require.NoError(t, c.hold(t.Context(), "n1", []string{gpuC}, mark{Pod: "ns/q", ID: "3", Until: future}))
	_, err := c.Cordon(t.Context(), "n1", gpuD, true)
	require.NoError(t, err)
	of := func() []string {
		n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		require.NoError(t, err)
		return cordonsOf(n).uuids
	}
	n, _, err := c.Node(t.Context(), "n1")
	require.NoError(t, err)
	require.Contains(t, n.Problems, "GPU "+gpuB+" is still cordoned by a defrag of pod ns/q, which has ended: kubectl gpuslice uncordon n1 "+gpuB)
	require.NotContains(t, strings.Join(n.Problems, "\n"), gpuA)

	var said []string
	report := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	require.NoError(t, c.Clear(t.Context(), "ns", "p", true, report))
	require.Equal(t, []string{gpuA, gpuB, gpuC, gpuD}, of())
	require.Len(t, said, 2)
	require.Contains(t, said[0], "GPU "+gpuA+" of node n1 is still cordoned by an earlier defrag of pod ns/p")
	require.Contains(t, said[1], "kubectl gpuslice uncordon n1 "+gpuB)
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource("nodes"), "n1", errors.New("no right"))
	})
	require.NoError(t, c.Clear(t.Context(), "ns", "p", false, report), "resizes need no right to change nodes")
	require.Len(t, said, 4)
	require.Equal(t, said[:2], said[2:])
	client.ReactionChain = client.ReactionChain[1:]
	said = nil
	require.NoError(t, c.Clear(t.Context(), "ns", "p", false, report))
	require.Equal(t, []string{gpuC, gpuD}, of())
	require.Equal(t, []string{"GPU " + gpuA + " of node n1 is uncordoned: an earlier defrag had cordoned it", "GPU " + gpuB + " of node n1 is uncordoned: an earlier defrag had cordoned it"}, said)
	changed, err := c.Cordon(t.Context(), "n1", gpuC, false)
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, []string{gpuD}, of())
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource("nodes"), "", errors.New("no right"))
	})
	require.NoError(t, c.Clear(t.Context(), "ns", "p", true, report), "a plan needs no right to nodes")
}

func TestMarksOfCordons(t *testing.T) {
	until := time.Unix(1, 0).UTC()
	text := `{"` + gpuA + `":{"pod":"ns/p","id":"i","until":"1970-01-01T00:00:01Z"}}`
	of := func(cordon, marks string) cordons {
		return cordonsOf(&v1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{api.AnnotationHAMiCordon: cordon, api.AnnotationDefragCordon: marks}}})
	}
	marked := of(gpuB+", "+gpuA, text)
	require.Equal(t, cordons{[]string{gpuB, gpuA}, map[string]mark{gpuA: {"ns/p", "i", until}}}, marked)
	annotations, err := marked.annotations()
	require.NoError(t, err)
	require.Equal(t, map[string]any{api.AnnotationHAMiCordon: gpuB + "," + gpuA, api.AnnotationDefragCordon: text}, annotations)
	require.Empty(t, of(gpuB, text).marks, "another program has removed the cordon")
	for _, bad := range []string{"", "null", "[]", "{", `{"` + gpuA + `":1}`} {
		require.Equal(t, cordons{[]string{gpuA}, map[string]mark{}}, of(gpuA, bad), bad)
	}
	marked.remove(gpuA)
	marked.remove(gpuB)
	annotations, err = marked.annotations()
	require.NoError(t, err)
	require.Equal(t, map[string]any{api.AnnotationHAMiCordon: nil, api.AnnotationDefragCordon: nil}, annotations)
}

// What is read of a Node's annotations is written as it was read.
func FuzzCordons(f *testing.F) {
	f.Add("GPU-1, GPU-2", `{"GPU-1":{"pod":"team/train","id":"1","until":"2026-11-26T10:00:00Z"},"GPU-3":{}}`)
	f.Add("GPU-1", `{"GPU-1":{"until":"9999-12-31T23:59:59.999999999-23:59"}}`)
	f.Add("", "null")
	f.Add(",", "[")
	f.Fuzz(func(t *testing.T, cordoned, marks string) {
		n := &v1.Node{}
		n.Annotations = map[string]string{api.AnnotationHAMiCordon: cordoned, api.AnnotationDefragCordon: marks}
		read := cordonsOf(n)
		set, err := read.annotations()
		require.NoError(t, err)
		n.Annotations = map[string]string{}
		for key, value := range set {
			if value != nil {
				n.Annotations[key] = value.(string)
			}
		}
		again := cordonsOf(n)
		require.Equal(t, len(read.uuids), len(again.uuids))
		require.Equal(t, len(read.marks), len(again.marks))
	})
}
