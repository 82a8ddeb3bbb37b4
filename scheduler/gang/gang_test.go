package gang

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
)

func member(name string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{api.LabelGroup: "g"}}}
	for _, f := range change {
		f(p)
	}
	return p
}

func TestOf(t *testing.T) {
	native := "native"
	for want, p := range map[string]*v1.Pod{
		"ns/g":                               member("p"),
		"ns/volcano (scheduling.volcano.sh)": {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Annotations: map[string]string{api.AnnotationVolcanoGroup: "volcano"}}},
		"ns/new (scheduling.volcano.sh)":     {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Annotations: map[string]string{api.AnnotationVolcanoGroupNew: "new"}}},
		"ns/native (scheduling.k8s.io)":      member("p", func(p *v1.Pod) { p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &native} }),
	} {
		name, ok := Of(p)
		require.True(t, ok)
		require.Equal(t, want, name.String())
	}
	_, ok := Of(&v1.Pod{})
	require.False(t, ok)
}

type none struct{ error }

func (n none) Find(Name) (Spec, error) { return Spec{}, n.error }

func TestNew(t *testing.T) {
	least := func(n string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Annotations = map[string]string{api.AnnotationGroupMin: n} }
	}
	now := metav1.Now()
	gone := member("gone", least("9"), func(p *v1.Pod) { p.DeletionTimestamp, p.Spec.NodeName = &now, "n1" })
	ended := member("ended", least("9"), func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded })
	unknown := none{errors.New("why")}
	g := New(Name{}, []*v1.Pod{gone, ended, member("a"), member("b", least("many"))}, unknown)
	require.Len(t, g.Pods, 2)
	require.False(t, g.Started, "one that goes away counts for nothing")
	require.True(t, g.MustWait())
	require.False(t, g.Complete())
	require.Contains(t, g.Incomplete(), "it is not known how many pods must be scheduled together: why")

	g = New(Name{Namespace: "ns", Name: "g"}, []*v1.Pod{member("a", least("2")), member("b")}, unknown)
	require.Empty(t, g.Incomplete(), "one pod's annotation is enough")
	require.True(t, g.MustWait())
	g = New(Name{Namespace: "ns", Name: "g"}, []*v1.Pod{member("a", least("3")), member("b", least("2"))}, unknown)
	require.Equal(t, "group ns/g has 2 of the 3 pods that must be scheduled together", g.Incomplete())
	g = New(Name{}, []*v1.Pod{member("a"), member("b", func(p *v1.Pod) { p.Spec.NodeName = "n1" })}, unknown)
	require.False(t, g.MustWait(), "a group of which pods run, as an earlier version placed it")

	important := int32(5)
	old := New(Name{Name: "a"}, []*v1.Pod{member("a")}, unknown)
	require.True(t, old.Before(New(Name{Name: "b"}, []*v1.Pod{member("a", func(p *v1.Pod) { p.CreationTimestamp = now })}, unknown)))
	require.True(t, New(Name{Name: "b"}, []*v1.Pod{member("a", func(p *v1.Pod) { p.Spec.Priority = &important })}, unknown).Before(old), "priority goes before age")
}

// cluster is an API server with PodGroups, or without the API.
type cluster struct {
	*PodGroups
	client *fakedynamic.FakeDynamicClient
	log    *strings.Builder

	mu      sync.Mutex
	served  map[string]bool
	changes []Name
}

func (c *cluster) serve(groups ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served = map[string]bool{}
	for _, g := range groups {
		c.served[g] = true
	}
}

func (c *cluster) changedNames() []Name {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

func podGroup(version, name, spec string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	err := u.UnmarshalJSON(fmt.Appendf(nil, `{"apiVersion":%q,"kind":"PodGroup","metadata":{"namespace":"ns","name":%q},"spec":%s}`, version, name, spec))
	if err != nil {
		panic(err)
	}
	return u
}

func newCluster(t *testing.T, served []string, objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{log: &strings.Builder{}}
	kinds := map[schema.GroupVersionResource]string{}
	for _, s := range sources {
		kinds[schema.GroupVersionResource{Group: s.group, Version: s.versions[0], Resource: resource}] = "PodGroupList"
	}
	c.client = fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
	d := fake.NewClientset().Discovery().(*fakediscovery.FakeDiscovery)
	c.serve(served...)
	logged := slog.New(slog.NewTextHandler(&locked{c}, nil))
	c.PodGroups = NewPodGroups(discoverer{d, c}, c.client, logged, func(name Name) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changes = append(c.changes, name)
	})
	c.interval = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

type locked struct{ c *cluster }

func (l *locked) Write(b []byte) (int, error) {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	return l.c.log.Write(b)
}

type discoverer struct {
	*fakediscovery.FakeDiscovery
	c *cluster
}

func (d discoverer) ServerResourcesForGroupVersion(gv string) (*metav1.APIResourceList, error) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	group, _, _ := strings.Cut(gv, "/")
	if !d.c.served[group] {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: group}, "")
	}
	return &metav1.APIResourceList{GroupVersion: gv, APIResources: []metav1.APIResource{{Name: resource}}}, nil
}

func (c *cluster) finds(t *testing.T, name Name, want Spec) {
	t.Helper()
	require.Eventually(t, func() bool { s, err := c.Find(name); return err == nil && s == want }, 30*time.Second, time.Millisecond)
}

func (c *cluster) refuses(t *testing.T, name Name, why string) {
	t.Helper()
	require.Eventually(t, func() bool { _, err := c.Find(name); return err != nil && strings.Contains(err.Error(), why) }, 30*time.Second, time.Millisecond)
}

func TestPodGroups(t *testing.T) {
	c := newCluster(t, []string{"scheduling.x-k8s.io", "scheduling.volcano.sh", "scheduling.k8s.io"},
		podGroup("scheduling.x-k8s.io/v1alpha1", "g", `{"minMember":3,"scheduleTimeoutSeconds":40}`),
		podGroup("scheduling.volcano.sh/v1beta1", "g", `{"minMember":4}`),
		podGroup("scheduling.k8s.io/v1alpha2", "g", `{"schedulingPolicy":{"gang":{"minCount":5}}}`),
		podGroup("scheduling.k8s.io/v1alpha2", "basic", `{"schedulingPolicy":{"basic":{}}}`),
		podGroup("scheduling.volcano.sh/v1beta1", "bad", `{"minMember":"x"}`),
	)
	c.finds(t, Name{Coscheduling, "ns", "g"}, Spec{Minimum: 3, Timeout: 40 * time.Second})
	c.finds(t, Name{Volcano, "ns", "g"}, Spec{Minimum: 4})
	c.finds(t, Name{Kubernetes, "ns", "g"}, Spec{Minimum: 5})
	c.finds(t, Name{Kubernetes, "ns", "basic"}, Spec{Minimum: 1})
	c.refuses(t, Name{Volcano, "ns", "bad"}, "PodGroup bad: ")
	c.refuses(t, Name{Volcano, "other", "g"}, "there is no PodGroup g of scheduling.volcano.sh: create it, or set the annotation gpuslice.io/pod-group-min")

	late := Name{Coscheduling, "ns", "late"}
	c.refuses(t, late, "there is no PodGroup late")
	_, err := c.client.Resource(schema.GroupVersionResource{Group: "scheduling.x-k8s.io", Version: "v1alpha1", Resource: resource}).Namespace("ns").
		Create(t.Context(), podGroup("scheduling.x-k8s.io/v1alpha1", "late", `{"minMember":2}`), metav1.CreateOptions{})
	require.NoError(t, err)
	c.finds(t, late, Spec{Minimum: 2})
	require.Eventually(t, func() bool { return contains(c.changedNames(), late) }, 30*time.Second, time.Millisecond)
}

func contains(all []Name, name Name) bool {
	for _, n := range all {
		if n == name {
			return true
		}
	}
	return false
}

// A cluster without the API is asked for it again and again: it is logged once. It is found when it is installed.
func TestPodGroupsThatAreNotInstalled(t *testing.T) {
	c := newCluster(t, nil, podGroup("scheduling.volcano.sh/v1beta1", "g", `{"minMember":4}`))
	name := Name{Volcano, "ns", "g"}
	c.refuses(t, name, "no PodGroups of scheduling.volcano.sh can be read (the API server does not have them)")
	require.Eventually(t, func() bool { return contains(c.changedNames(), name) }, 30*time.Second, time.Millisecond, "its pods report the reason")
	for range 20 { // it is looked for at each interval
		c.refuses(t, name, "the API server does not have them")
		time.Sleep(time.Millisecond)
	}
	c.serve("scheduling.volcano.sh")
	c.finds(t, name, Spec{Minimum: 4})
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Equal(t, 1, strings.Count(c.log.String(), "can't read PodGroups"), c.log.String())
}

func TestPodGroupsThatMayNotBeRead(t *testing.T) {
	c := newCluster(t, []string{"scheduling.x-k8s.io"}, podGroup("scheduling.x-k8s.io/v1alpha1", "g", `{"minMember":2}`))
	var mu sync.Mutex
	forbidden := true
	c.client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		return forbidden, nil, apierrors.NewForbidden(schema.GroupResource{Group: "scheduling.x-k8s.io", Resource: resource}, "", errors.New("no role"))
	})
	name := Name{Coscheduling, "ns", "g"}
	c.refuses(t, name, "is forbidden: no role")
	mu.Lock()
	forbidden = false
	mu.Unlock()
	c.finds(t, name, Spec{Minimum: 2})
}

// A cluster without groups is asked for nothing.
func TestPodGroupsAreReadIfNeeded(t *testing.T) {
	c := newCluster(t, []string{"scheduling.x-k8s.io", "scheduling.volcano.sh"}, podGroup("scheduling.volcano.sh/v1beta1", "g", `{"minMember":4}`))
	c.finds(t, Name{Volcano, "ns", "g"}, Spec{Minimum: 4})
	for _, a := range c.client.Actions() {
		require.Equal(t, "scheduling.volcano.sh", a.GetResource().Group)
	}
	_, err := NewPodGroups(nil, nil, nil, nil).Find(Name{})
	require.ErrorIs(t, err, errNoClient)
}
