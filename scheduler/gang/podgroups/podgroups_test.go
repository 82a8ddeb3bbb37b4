package podgroups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/scheduler/gang"
)

// cluster is an API server with PodGroups, or without the API.
type cluster struct {
	*Reader
	client *fakedynamic.FakeDynamicClient
	log    *strings.Builder

	mu      sync.Mutex
	served  map[string]bool
	asked   int // by discovery
	changes []gang.Name
}

func (c *cluster) serve(groups ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served = map[string]bool{}
	for _, g := range groups {
		c.served[g] = true
	}
}

func (c *cluster) changedNames() []gang.Name {
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
	for i, s := range sources {
		kinds[schema.GroupVersionResource{Group: gang.Groups[i], Version: s.versions[0], Resource: resource}] = "PodGroupList"
	}
	c.client = fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
	d := fake.NewClientset().Discovery().(*fakediscovery.FakeDiscovery)
	c.serve(served...)
	logged := slog.New(slog.NewTextHandler(&locked{c}, nil))
	c.Reader = New(discoverer{d, c}, c.client, logged, func(name gang.Name) {
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
	d.c.asked++
	group, _, _ := strings.Cut(gv, "/")
	if !d.c.served[group] {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: group}, "")
	}
	return &metav1.APIResourceList{GroupVersion: gv, APIResources: []metav1.APIResource{{Name: resource}}}, nil
}

func (c *cluster) finds(t *testing.T, name gang.Name, want gang.Spec) {
	t.Helper()
	require.Eventually(t, func() bool { s, err := c.Find(name); return err == nil && s == want }, time.Minute, time.Millisecond)
}

func (c *cluster) refuses(t *testing.T, name gang.Name, why string) {
	t.Helper()
	require.Eventually(t, func() bool { _, err := c.Find(name); return err != nil && strings.Contains(err.Error(), why) }, time.Minute, time.Millisecond)
}

func TestPodGroups(t *testing.T) {
	c := newCluster(t, []string{"scheduling.x-k8s.io", "scheduling.volcano.sh", "scheduling.k8s.io"},
		podGroup("scheduling.x-k8s.io/v1alpha1", "g", `{"minMember":3,"scheduleTimeoutSeconds":40}`),
		podGroup("scheduling.volcano.sh/v1beta1", "g", `{"minMember":4}`),
		podGroup("scheduling.k8s.io/v1alpha2", "g", `{"schedulingPolicy":{"gang":{"minCount":5}}}`),
		podGroup("scheduling.k8s.io/v1alpha2", "basic", `{"schedulingPolicy":{"basic":{}}}`),
		podGroup("scheduling.volcano.sh/v1beta1", "bad", `{"minMember":"x"}`),
	)
	c.finds(t, gang.Name{API: gang.Coscheduling, Namespace: "ns", Name: "g"}, gang.Spec{Minimum: 3, Timeout: 40 * time.Second})
	c.finds(t, gang.Name{API: gang.Volcano, Namespace: "ns", Name: "g"}, gang.Spec{Minimum: 4})
	c.finds(t, gang.Name{API: gang.Kubernetes, Namespace: "ns", Name: "g"}, gang.Spec{Minimum: 5})
	c.finds(t, gang.Name{API: gang.Kubernetes, Namespace: "ns", Name: "basic"}, gang.Spec{Minimum: 1})
	c.refuses(t, gang.Name{API: gang.Volcano, Namespace: "ns", Name: "bad"}, "PodGroup bad: ")
	c.refuses(t, gang.Name{API: gang.Volcano, Namespace: "other", Name: "g"}, "there is no PodGroup g of scheduling.volcano.sh: create it, or set the annotation gpuslice.io/pod-group-min")

	late := gang.Name{API: gang.Coscheduling, Namespace: "ns", Name: "late"}
	c.refuses(t, late, "there is no PodGroup late")
	_, err := c.client.Resource(schema.GroupVersionResource{Group: "scheduling.x-k8s.io", Version: "v1alpha1", Resource: resource}).Namespace("ns").
		Create(t.Context(), podGroup("scheduling.x-k8s.io/v1alpha1", "late", `{"minMember":2}`), metav1.CreateOptions{})
	require.NoError(t, err)
	c.finds(t, late, gang.Spec{Minimum: 2})
	require.Eventually(t, func() bool { return slices.Contains(c.changedNames(), late) }, time.Minute, time.Millisecond)
}

// A cluster without the API is asked for it again and again: it is logged once. It is found when it is installed.
func TestPodGroupsThatAreNotInstalled(t *testing.T) {
	c := newCluster(t, nil, podGroup("scheduling.volcano.sh/v1beta1", "g", `{"minMember":4}`))
	name := gang.Name{API: gang.Volcano, Namespace: "ns", Name: "g"}
	c.refuses(t, name, "no PodGroups of scheduling.volcano.sh can be read (the API server does not have them)")
	require.Eventually(t, func() bool { return slices.Contains(c.changedNames(), name) }, time.Minute, time.Millisecond, "its pods report the reason")
	asked := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.asked
	}
	before := asked()
	require.Eventually(t, func() bool { return asked() > before+20 }, time.Minute, time.Millisecond, "it is looked for at each interval")
	c.serve("scheduling.volcano.sh")
	c.finds(t, name, gang.Spec{Minimum: 4})
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
	name := gang.Name{API: gang.Coscheduling, Namespace: "ns", Name: "g"}
	c.refuses(t, name, "is forbidden: no role")
	mu.Lock()
	forbidden = false
	mu.Unlock()
	c.finds(t, name, gang.Spec{Minimum: 2})
}

// A cluster without groups is asked for nothing.
func TestPodGroupsAreReadIfNeeded(t *testing.T) {
	c := newCluster(t, []string{"scheduling.x-k8s.io", "scheduling.volcano.sh"}, podGroup("scheduling.volcano.sh/v1beta1", "g", `{"minMember":4}`))
	c.finds(t, gang.Name{API: gang.Volcano, Namespace: "ns", Name: "g"}, gang.Spec{Minimum: 4})
	for _, a := range c.client.Actions() {
		require.Equal(t, "scheduling.volcano.sh", a.GetResource().Group)
	}
	_, err := New(nil, nil, nil, nil).Find(gang.Name{})
	require.ErrorIs(t, err, errNoClient)
}
