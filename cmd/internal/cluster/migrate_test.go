package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/migrate"
)

// migrating is a cluster with a node of HAMi, where DaemonSets follow the labels of the node like their controller.
type migrating struct {
	*Cluster
	t      *testing.T
	client *fake.Clientset
	how    *migrate.Switch
	// reported are the messages so far.
	reported []string
	// changes are the states of the node that differ from the one before.
	changes []string
	// followed is the last state that the controllers have seen.
	followed string
	// dead: the DaemonSet's pods are never ready.
	dead types.UID
	// lag is for how long the kubelet offers GPUs of a device plugin that has gone, and offers are what it will do when.
	lag    time.Duration
	offers string
	when   time.Time
	// late is a pod that is bound when HAMi's label is gone.
	late *v1.Pod
	// refuse is the API server's answer to an eviction; nil: it is done.
	refuse func(name string) error
}

const theNode = "n1"

func withGPU(name string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}, Spec: v1.PodSpec{NodeName: theNode, Containers: []v1.Container{{Name: "main"}}}}
	p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	return p
}

func newMigrating(t *testing.T, pods ...*v1.Pod) *migrating {
	t.Helper()
	m := &migrating{t: t}
	m.how = &migrate.Switch{
		From: migrate.HAMi, Resources: []string{"nvidia.com/gpu", "nvidia.com/gpumem"}, Count: "nvidia.com/gpu",
		Old: migrate.Daemon{Of: "HAMi", Namespace: "kube-system", Name: "hami-device-plugin", UID: "hami", Selector: map[string]string{"gpu": "on"}, Key: "gpu"},
		New: migrate.Daemon{Of: "gpuslice", Namespace: "gpuslice-system", Name: "gpuslice-agent", UID: "agent", Selector: map[string]string{api.LabelMigrated: "true"}, Key: api.LabelMigrated},
	}
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: theNode, Labels: map[string]string{"gpu": "on", "other": "x"}}}
	objects := []runtime.Object{n}
	for _, p := range pods {
		objects = append(objects, p)
	}
	m.Cluster, m.client = of(nil, objects...)
	m.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e, is := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if !is {
			return false, nil, nil
		}
		if m.refuse != nil {
			if err := m.refuse(e.Name); err != nil {
				return true, nil, err
			}
		}
		return true, e, m.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "ns", e.Name)
	})
	m.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		m.follow()
		return false, nil, nil
	})
	m.client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		m.follow()
		return false, nil, nil
	})
	m.follow()
	return m
}

// follow does what the DaemonSets' controller and the kubelet do.
func (m *migrating) follow() {
	tracker, pods := m.client.Tracker(), v1.SchemeGroupVersion.WithResource("pods")
	n := m.node()
	if now := m.state() + string(m.dead); now != m.followed {
		m.followed = now
	} else {
		m.offer()
		return
	}
	offered := false
	for _, d := range []migrate.Daemon{m.how.Old, m.how.New} {
		_ = tracker.Delete(pods, d.Namespace, d.Name) // it may not be there
		if !d.Selects(n) {
			continue
		}
		yes, ready := true, v1.ConditionTrue
		if string(m.dead) == d.UID {
			ready = v1.ConditionFalse
		}
		offered = offered || ready == v1.ConditionTrue
		require.NoError(m.t, tracker.Create(pods, &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name, OwnerReferences: []metav1.OwnerReference{{UID: types.UID(d.UID), Controller: &yes}}},
			Spec:       v1.PodSpec{NodeName: theNode}, Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}},
		}, d.Namespace))
	}
	if m.how.New.Selects(n) && !strings.Contains(m.changes[len(m.changes)-1], api.LabelMigrated+"=") {
		require.Empty(m.t, migrate.Offered(n, "nvidia.com/gpu"), "the GPUs of the other device plugin are still offered")
	}
	m.offers, m.when = map[bool]string{true: "10", false: "0"}[offered], time.Now().Add(m.lag)
	if offered {
		m.when = time.Now()
	}
	m.offer()
	both := m.how.Old.Selects(n) && m.how.New.Selects(n)
	require.False(m.t, both, "two device plugins offer one resource")
	m.changes = append(m.changes, m.state())
	if m.late != nil && !m.how.Old.Selects(n) {
		require.NoError(m.t, tracker.Create(pods, m.late, "ns"))
		m.late = nil
	}
}

// offer does what the kubelet does when its time has come.
func (m *migrating) offer() {
	n := m.node()
	if now := n.Status.Allocatable["nvidia.com/gpu"]; time.Now().Before(m.when) || n.Status.Allocatable != nil && now.String() == m.offers {
		return
	}
	n.Status.Allocatable = v1.ResourceList{"nvidia.com/gpu": resource.MustParse(m.offers)}
	require.NoError(m.t, m.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), n, ""))
}

// label changes labels as another program does; empty: it removes one.
func (m *migrating) label(labels map[string]string) {
	n := m.node()
	for key, value := range labels {
		n.Labels[key] = value
		if value == "" {
			delete(n.Labels, key)
		}
	}
	require.NoError(m.t, m.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), n, ""))
}

func (m *migrating) node() *v1.Node {
	object, err := m.client.Tracker().Get(v1.SchemeGroupVersion.WithResource("nodes"), "", theNode)
	require.NoError(m.t, err)
	return object.(*v1.Node).DeepCopy()
}

var ofCall = regexp.MustCompile(`,"call":"[A-Z0-9]+"`)

// state is the node's labels, its cordon and its record without the call.
func (m *migrating) state() string {
	n, words := m.node(), []string{}
	for _, key := range []string{"gpu", api.LabelMigrated} {
		if value, has := n.Labels[key]; has {
			words = append(words, key+"="+value)
		}
	}
	if n.Spec.Unschedulable {
		words = append(words, "cordoned")
	}
	return strings.TrimSpace(strings.Join(words, " ") + " " + ofCall.ReplaceAllString(n.Annotations[api.AnnotationMigration], ""))
}

func (m *migrating) pods() (names []string) {
	list, err := m.client.CoreV1().Pods("ns").List(context.Background(), metav1.ListOptions{})
	require.NoError(m.t, err)
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return names
}

func (m *migrating) run(ctx context.Context, back bool) error {
	m.reported = nil
	return m.Switch(ctx, theNode, m.how, back, Evictions{GracePeriod: -1, Report: func(format string, args ...any) { m.reported = append(m.reported, fmt.Sprintf(format, args...)) }})
}

const (
	served   = "gpu=on"
	switched = `gpuslice.io/migrated=true {"from":"hami","done":true}`
	going    = `cordoned {"from":"hami","cordoned":true}`
	coming   = `cordoned {"from":"hami","back":true,"cordoned":true}`
)

func TestSwitchAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := withGPU("plain")
		plain.Spec.Containers[0].Resources = v1.ResourceRequirements{}
		elsewhere := withGPU("elsewhere")
		elsewhere.Spec.NodeName = "n2"
		ended := withGPU("ended")
		ended.Status.Phase = v1.PodSucceeded
		m := newMigrating(t, withGPU("a"), withGPU("b"), plain, elsewhere, ended)
		require.NoError(t, m.run(t.Context(), false))
		assert.Equal(t, []string{served, served + " " + going, going, "gpuslice.io/migrated=true " + going}, m.changes)
		assert.Equal(t, switched, m.state())
		assert.Equal(t, []string{"elsewhere", "ended", "plain"}, m.pods())
		assert.Equal(t, "x", m.node().Labels["other"])
		assert.Equal(t, []string{
			"node n1 is cordoned", "pod ns/a is evicted", "pod ns/b is evicted", "pod ns/a is gone", "pod ns/b is gone",
			"node n1 is left by HAMi's DaemonSet kube-system/hami-device-plugin", "node n1 has the label of gpuslice's DaemonSet gpuslice-system/gpuslice-agent",
			"waiting until gpuslice's DaemonSet gpuslice-system/gpuslice-agent offers the GPUs of node n1", "node n1 is gpuslice's",
		}, m.reported)

		require.NoError(t, m.run(t.Context(), false))
		assert.Equal(t, []string{"node n1 is switched already"}, m.reported)

		require.NoError(t, m.client.Tracker().Create(v1.SchemeGroupVersion.WithResource("pods"), withGPU("c"), "ns"))
		require.NoError(t, m.run(t.Context(), true))
		assert.Equal(t, served, m.state())
		assert.Equal(t, []string{"elsewhere", "ended", "plain"}, m.pods())
		assert.Contains(t, m.changes, coming, "it has no labels of both meanwhile")
		require.ErrorContains(t, m.run(t.Context(), true), "node n1 is not migrated")
	})
}

// A pod that was bound before the scheduler knew the cordon is evicted before the node is gpuslice's.
func TestSwitchWithALatePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMigrating(t)
		m.late = withGPU("late")
		require.NoError(t, m.run(t.Context(), false))
		assert.Empty(t, m.pods())
		evicted := slices.Index(m.reported, "pod ns/late is evicted")
		require.Positive(t, evicted)
		assert.Less(t, evicted, slices.Index(m.reported, "node n1 has the label of gpuslice's DaemonSet gpuslice-system/gpuslice-agent"))
	})
}

// An operator's cordon stays.
func TestSwitchOfACordonedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMigrating(t)
		n := m.node()
		n.Spec.Unschedulable = true
		require.NoError(t, m.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), n, ""))
		require.NoError(t, m.run(t.Context(), false))
		assert.Equal(t, `gpuslice.io/migrated=true cordoned {"from":"hami","done":true}`, m.state())
		require.NoError(t, m.run(t.Context(), true))
		assert.Equal(t, served+" cordoned", m.state())
	})
}

// A budget forbids the eviction: the node keeps HAMi. The command continues later, or goes back.
func TestSwitchDelayedByABudget(t *testing.T) {
	for _, back := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMigrating(t, withGPU("a"))
			m.refuse = func(string) error { return apierrors.NewTooManyRequests("the budget allows none", 0) }
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := m.run(ctx, false)
			require.ErrorContains(t, err, "node n1 is cordoned: the same command continues, and --undo goes back: evict pod ns/a: the budget allows none")
			assert.Equal(t, served+" "+going, m.state())
			if !back {
				m.refuse = nil
			}
			require.NoError(t, m.run(t.Context(), back))
			assert.Equal(t, map[bool]string{false: switched, true: served}[back], m.state())
			assert.Equal(t, back, slices.Contains(m.pods(), "a"), "nothing of HAMi's is evicted on the way back")
		})
	}
}

// The agent is never ready: the node stays cordoned, with gpuslice's labels only. It continues, or goes back.
func TestSwitchWithoutAnAgent(t *testing.T) {
	for _, back := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMigrating(t, withGPU("a"))
			m.dead = "agent"
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := m.run(ctx, false)
			require.ErrorContains(t, err, "gpuslice's DaemonSet gpuslice-system/gpuslice-agent does not offer nvidia.com/gpu: see the log of its pod")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, "gpuslice.io/migrated=true "+going, m.state())
			if !back {
				m.dead = ""
			}
			require.NoError(t, m.run(t.Context(), back))
			assert.Equal(t, map[bool]string{false: switched, true: served}[back], m.state())
		})
	}
}

// A call that ends before any of its requests leaves a state from which it continues, and from which it goes back. The API server
// may have done the last write.
func TestSwitchInterrupted(t *testing.T) {
	for _, first := range []bool{false, true} { // the direction that is interrupted
		for _, done := range []bool{false, true} { // the write is done
			for at, ended := 1, false; !ended; at++ {
				for _, second := range []bool{false, true} {
					synctest.Test(t, func(t *testing.T) {
						m := newMigrating(t, withGPU("a"))
						if first {
							require.NoError(t, m.run(t.Context(), false))
							require.NoError(t, m.client.Tracker().Create(v1.SchemeGroupVersion.WithResource("pods"), withGPU("b"), "ns"))
						}
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						writes, active := 0, true
						m.client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
							if a.GetVerb() != "patch" && a.GetVerb() != "create" || !active {
								return false, nil, nil
							}
							if writes++; writes != at {
								return false, nil, nil
							}
							active = false
							cancel()
							if patch, is := a.(clienttesting.PatchAction); is && done {
								_, _, err := clienttesting.ObjectReaction(m.client.Tracker())(patch)
								require.NoError(t, err)
							}
							return true, nil, errors.New("connection lost")
						})
						err := m.run(ctx, first)
						if active { // all writes are done
							require.NoError(t, err)
							ended = true
							return
						}
						active = false
						require.Error(t, err)
						err = m.run(t.Context(), second)
						if second && (err != nil) {
							require.ErrorContains(t, err, "is not migrated", "before the first write, or after the last")
						} else if err != nil {
							require.NoError(t, err)
						}
						assert.Equal(t, map[bool]string{false: switched, true: served}[second], m.state(), "%v %v %d", first, done, at)
					})
				}
			}
		}
	}
}

// An operator has given the node back to HAMi by hand.
func TestSwitchAfterAChangeByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMigrating(t)
		require.NoError(t, m.run(t.Context(), false))
		m.label(map[string]string{api.LabelMigrated: "", "gpu": "on"})
		require.NoError(t, m.run(t.Context(), false))
		assert.Equal(t, switched, m.state())
	})
}

// Nothing is changed that is not to be switched.
func TestSwitchRefused(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(*v1.Node)
		back bool
		want string
	}{
		"not HAMi's":    {edit: func(n *v1.Node) { delete(n.Labels, "gpu") }, want: "node n1 is not one of HAMi's DaemonSet kube-system/hami-device-plugin: it does not have its labels"},
		"not switched":  {back: true, want: "node n1 is not migrated: it has no annotation gpuslice.io/migration"},
		"gpu-manager's": {edit: func(n *v1.Node) { n.Annotations = map[string]string{api.AnnotationMigration: `{"from":"tencent"}`} }, want: "node n1 is migrated from gpu-manager: use kubectl gpuslice migrate tencent"},
		"a bad record":  {edit: func(n *v1.Node) { n.Annotations = map[string]string{api.AnnotationMigration: "x"} }, want: "the annotation gpuslice.io/migration is invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMigrating(t, withGPU("a"))
			n := m.node()
			if test.edit != nil {
				test.edit(n)
			}
			require.NoError(t, m.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), n, ""))
			before := m.state()
			require.ErrorContains(t, m.run(t.Context(), test.back), test.want)
			assert.Equal(t, before, m.state())
			assert.Equal(t, []string{"a"}, m.pods())
		})
	}
	m := newMigrating(t)
	require.ErrorContains(t, m.Switch(t.Context(), "other", m.how, false, Evictions{}), "node other: ")
}

// A right that is missing ends the wait at once.
func TestSwitchForbidden(t *testing.T) {
	m := newMigrating(t)
	m.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource("pods"), "", errors.New("no right"))
	})
	require.ErrorContains(t, m.run(t.Context(), false), "list the pods of node n1: pods is forbidden")
	assert.Equal(t, served, m.state(), "nothing is changed")
}

// HAMi's device plugin has other labels of the node too: they stay, and with them what else selects the node by them.
func TestSwitchRemovesOneLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMigrating(t)
		m.how.Old.Selector = map[string]string{"gpu": "on", "kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"}
		m.how.New.Selector = map[string]string{api.LabelMigrated: "true", "kubernetes.io/os": "linux"}
		all := map[string]string{"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"}
		m.label(all)
		require.NoError(t, m.run(t.Context(), false))
		require.Equal(t, switched, m.state())
		for key, value := range all {
			assert.Equal(t, value, m.node().Labels[key])
		}
		require.NoError(t, m.run(t.Context(), true))
		assert.Equal(t, served, m.state())
		assert.Equal(t, map[string]string{"gpu": "on", "other": "x", "kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"}, m.node().Labels)

		m.label(map[string]string{"kubernetes.io/os": ""})
		m.how.Old.Selector = map[string]string{"gpu": "on"}
		require.ErrorContains(t, m.run(t.Context(), false), "node n1 does not have all labels of gpuslice's DaemonSet gpuslice-system/gpuslice-agent: set kubernetes.io/os=linux first")
		assert.Equal(t, served, m.state())
	})
}

// A label that another program sets again is not removed again and again: both device plugins would run.
func TestSwitchWithALabelThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMigrating(t)
		m.dead = "agent"
		m.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if m.state() == "gpuslice.io/migrated=true "+going {
				n := m.node()
				n.Labels["gpu"] = "on"
				m.followed = "gpu=on " + m.followed // its controller would start HAMi's pod now
				require.NoError(t, m.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), n, ""))
				m.followed = m.state() + string(m.dead)
			}
			return false, nil, nil
		})
		err := m.run(t.Context(), false)
		require.ErrorIs(t, err, errLabelled)
		require.ErrorContains(t, err, "node n1 is cordoned: the same command continues")
	})
}

// The kubelet offers the GPUs of HAMi's device plugin for some time after it is gone. They are not the agent's.
func TestSwitchWaitsForTheKubelet(t *testing.T) {
	for _, back := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMigrating(t)
			if back {
				require.NoError(t, m.run(t.Context(), false))
			}
			m.lag = time.Minute
			began := time.Now()
			require.NoError(t, m.run(t.Context(), back))
			assert.GreaterOrEqual(t, time.Since(began), time.Minute)
			assert.Equal(t, map[bool]string{false: switched, true: served}[back], m.state())
		})
	}
	synctest.Test(t, func(t *testing.T) {
		m := newMigrating(t)
		m.lag = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := m.run(ctx, false)
		require.ErrorContains(t, err, "the kubelet still offers GPUs of a device plugin")
		require.ErrorContains(t, err, "node n1 is cordoned, and has no device plugin: the same command continues, and --undo goes back")
		assert.Equal(t, going, m.state())
	})
}

// Pods with MIG instances are evicted too, and a node that only has those offers GPUs.
func TestSwitchWithMIG(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		instance := withGPU("instance")
		instance.Spec.Containers[0].Resources.Limits = v1.ResourceList{"nvidia.com/mig-1g.10gb": resource.MustParse("1")}
		m := newMigrating(t, instance)
		require.NoError(t, m.run(t.Context(), false))
		assert.Empty(t, m.pods())
	})
	n := &v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{"nvidia.com/gpu": resource.MustParse("0"), "nvidia.com/mig-1g.10gb": resource.MustParse("7")}}}
	assert.Equal(t, "nvidia.com/mig-1g.10gb", migrate.Offered(n, "nvidia.com/gpu"))
}

// An eviction does not free a node of pods that are created on it again. Nothing is changed then.
func TestSwitchWithPodsThatStay(t *testing.T) {
	yes := true
	for want, edit := range map[string]func(*v1.Pod){
		"node n1: pod ns/a is static: move its manifest away from the node": func(p *v1.Pod) {
			p.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "x"}
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: theNode, Controller: &yes}}
		},
		"node n1: pod ns/a is of DaemonSet exporter, which creates it on the node again: exclude the node there": func(p *v1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "exporter", Controller: &yes}}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := withGPU("a")
			edit(p)
			m := newMigrating(t, p, withGPU("b"))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.ErrorContains(t, m.run(ctx, false), want)
			assert.Equal(t, served, m.state())
			assert.Equal(t, []string{"a", "b"}, m.pods())
		})
	}
}

// A DaemonSet's pod that comes while a node is switched ends the call, and does not prevent the way back.
func TestSwitchBackWithPodsThatStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMigrating(t, withGPU("a"))
		m.refuse = func(string) error {
			m.refuse = nil
			p := withGPU("daemon")
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "exporter", Controller: new(true)}}
			return m.client.Tracker().Create(v1.SchemeGroupVersion.WithResource("pods"), p, "ns")
		}
		require.ErrorContains(t, m.run(t.Context(), false), "node n1 is cordoned: the same command continues, and --undo goes back: node n1: pod ns/daemon is of DaemonSet exporter")
		require.NoError(t, m.run(t.Context(), true))
		assert.Equal(t, served, m.state())
		assert.Equal(t, []string{"daemon"}, m.pods())
	})
}

// A controller that sets spec.nodeName creates pods on a cordoned node.
func TestSwitchWithPodsThatComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMigrating(t, withGPU("a"))
		evictions := 0
		m.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			e := a.(clienttesting.CreateAction).GetObject()
			if evictions++; evictions > 100 {
				return true, nil, errors.New("too many evictions")
			}
			p := withGPU("a")
			p.UID = types.UID(fmt.Sprint("uid", evictions))
			return true, e, m.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), p, "ns")
		})
		require.ErrorContains(t, m.run(t.Context(), false), "pods with GPUs come again although the node is cordoned: [ns/a]")
		assert.Equal(t, maxRounds, evictions)
	})
}

// A second call takes the node over: the first one changes nothing any more, at whichever of its requests that is.
func TestSwitchTakenOver(t *testing.T) {
	for _, back := range []bool{false, true} { // the direction of the second
		for at, ended := 1, false; !ended; at++ {
			synctest.Test(t, func(t *testing.T) {
				m := newMigrating(t, withGPU("a"))
				requests, taken := 0, ""
				m.client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if taken != "" || m.node().Annotations[api.AnnotationMigration] == "" {
						return false, nil, nil
					}
					if requests++; requests < at {
						return false, nil, nil
					}
					// The second call has done everything: the fake client can't be called here.
					tracker, n := m.client.Tracker(), m.node()
					_ = tracker.Delete(v1.SchemeGroupVersion.WithResource("pods"), "ns", "a") // it may be gone
					n.Spec.Unschedulable = false
					n.Status.Allocatable = nil
					n.Labels = map[string]string{api.LabelMigrated: "true"}
					n.Annotations = map[string]string{api.AnnotationMigration: `{"from":"hami","done":true}`}
					if back {
						n.Labels, n.Annotations = map[string]string{"gpu": "on"}, nil
					}
					require.NoError(t, tracker.Update(v1.SchemeGroupVersion.WithResource("nodes"), n, ""))
					m.follow()
					taken = m.state()
					require.NoError(t, tracker.Create(v1.SchemeGroupVersion.WithResource("pods"), withGPU("new"), "ns"))
					if patch, is := a.(clienttesting.PatchAction); is { // the API server compares the version, the fake client does not
						require.Contains(t, string(patch.GetPatch()), `"resourceVersion":`)
						return true, nil, apierrors.NewConflict(v1.Resource("nodes"), theNode, errors.New("it was changed"))
					}
					return false, nil, nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := m.run(ctx, false)
				if taken == "" {
					require.NoError(t, err)
					ended = true
					return
				}
				require.ErrorIs(t, err, errTaken, at)
				assert.Equal(t, map[bool]string{false: switched, true: served}[back], taken)
				assert.Equal(t, taken, m.state(), at)
				assert.Contains(t, m.pods(), "new", at)
			})
		}
	}
}

// HAMi was uninstalled while a node was switched: it can be finished. Other nodes can't.
func TestSwitchAfterHAMiWasUninstalled(t *testing.T) {
	for name, labels := range map[string]map[string]string{"its label is there": nil, "its label is gone": {"gpu": ""}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMigrating(t, withGPU("a"))
				gone := *m.how
				gone.Old = migrate.Daemon{Of: "HAMi"}
				require.ErrorContains(t, m.Switch(t.Context(), theNode, &gone, false, Evictions{}), "kubectl label node n1 gpuslice.io/migrated=true")
				m.refuse = func(string) error { return errors.New("connection lost") }
				require.ErrorContains(t, m.run(t.Context(), false), "connection lost")
				m.refuse = nil
				m.label(labels)
				m.how = &gone
				m.followed = ""
				require.NoError(t, m.run(t.Context(), false))
				assert.Contains(t, m.state(), switched)
				assert.Empty(t, m.pods())
			})
		})
	}
}

func TestInventory(t *testing.T) {
	daemon := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "hami-device-plugin", Labels: map[string]string{"app.kubernetes.io/component": "hami-device-plugin"}}}
	daemon.Spec.Template.Spec = v1.PodSpec{
		NodeSelector: map[string]string{"gpu": "on"}, Containers: []v1.Container{{Command: []string{"nvidia-device-plugin"}}},
		Volumes: []v1.Volume{{Name: "device-config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "devices"}}}}},
	}
	devices := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "devices"}, Data: map[string]string{"device-config.yaml": "nvidia: {deviceSplitCount: 3}"}}
	controlled := metav1.ObjectMeta{Namespace: "ns", Name: "made", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Controller: new(true)}}}
	ofAnother := metav1.ObjectMeta{Namespace: "ns", Name: "database", OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Database", Controller: new(true)}}}
	failed := batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: v1.ConditionTrue}}}
	names := metav1.ObjectMeta{Namespace: "ns", Name: "w"}
	c, client := of(nil, daemon, devices, &appsv1.Deployment{ObjectMeta: names}, &appsv1.StatefulSet{ObjectMeta: ofAnother}, &appsv1.StatefulSet{ObjectMeta: names}, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "failed"}, Status: failed}, &appsv1.ReplicaSet{ObjectMeta: names}, &appsv1.ReplicaSet{ObjectMeta: controlled},
		&batchv1.Job{ObjectMeta: names}, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ended"}, Status: batchv1.JobStatus{CompletionTime: &metav1.Time{}}}, &batchv1.CronJob{ObjectMeta: names}, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: theNode, Labels: map[string]string{"gpu": "on"}}}, withGPU("a"))
	in, err := c.Inventory(t.Context())
	require.NoError(t, err)
	plan, err := migrate.Make(migrate.HAMi, in, migrate.Where{Ours: c.SystemNamespaces()})
	require.NoError(t, err)
	var kinds []string
	for _, w := range in.Workloads {
		kinds = append(kinds, w.String())
	}
	assert.Equal(t, []string{"DaemonSet kube-system/hami-device-plugin", "Deployment ns/w", "StatefulSet ns/database", "StatefulSet ns/w", "ReplicaSet ns/w", "Job ns/w", "CronJob ns/w"}, kinds)
	text, err := json.Marshal(plan.Values)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"device-split-count":3`)
	assert.Equal(t, []migrate.Node{{Name: theNode, State: migrate.StateServed, Pods: []migrate.Pod{{Name: "ns/a"}}}}, plan.Nodes)
	for _, a := range client.Actions() {
		assert.Contains(t, []string{"list", "get"}, a.GetVerb(), "a plan changes nothing")
	}
	for _, resource := range []string{"daemonsets", "deployments", "statefulsets", "replicasets", "jobs", "cronjobs", "mutatingwebhookconfigurations", "nodes", "pods", "configmaps"} {
		c, client := of(nil, daemon, devices)
		client.PrependReactor("*", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
		in, err := c.Inventory(t.Context())
		if err == nil {
			_, err = migrate.Make(migrate.HAMi, in, migrate.Where{Ours: c.SystemNamespaces()})
		}
		require.ErrorContains(t, err, "connection refused", resource)
	}
}
