package kube

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

func (j *journal) SetQuota(namespace, name string, q quota.Quota) {
	extra := ""
	if len(q.Scope) > 0 || q.Pool != "" {
		extra = fmt.Sprintf(" %v %q", q.Scope, q.Pool)
	}
	j.add("quota %s/%s %d MiB %d cores%s", namespace, name, q.MemoryMiB, q.Cores, extra)
}
func (j *journal) DeleteQuota(namespace, name string) { j.add("no quota %s/%s", namespace, name) }
func (j *journal) SetGPUQuota(c *quota.GPUs)          { j.add("GPUs %t", c != nil) }

func (j *journal) await(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	require.Eventually(t, func() bool {
		got = append(got, j.take()...)
		return len(got) >= len(want)
	}, time.Minute, time.Millisecond, "%v", want)
	require.Equal(t, want, got)
}

func resourceQuota(memory string) *v1.ResourceQuota {
	q := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"}}
	q.Spec.Hard = v1.ResourceList{"pods": resource.MustParse("5")}
	if memory != "" {
		q.Spec.Hard["limits.nvidia.com/gpumem"] = resource.MustParse(memory)
	}
	return q
}

func TestQuotas(t *testing.T) {
	client := fake.NewClientset(resourceQuota("1k"))
	factory, j := NewInformers(client), &journal{}
	f, err := NewFeed(factory, j)
	require.NoError(t, err)
	require.NoError(t, f.Quotas(factory, j, request.DefaultOptions(), slog.New(slog.DiscardHandler)))
	factory.Start(t.Context().Done())
	require.NoError(t, f.Wait(t.Context()))
	j.await(t, fmt.Sprintf("quota ns/q 1000 MiB %d cores", quota.Unlimited))

	update := func(memory string) {
		_, err := client.CoreV1().ResourceQuotas("ns").Update(t.Context(), resourceQuota(memory), metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	update("2k")
	j.await(t, fmt.Sprintf("quota ns/q 2000 MiB %d cores", quota.Unlimited))
	update("2000") // the same
	update("")
	j.await(t, "no quota ns/q")
	require.NoError(t, client.CoreV1().ResourceQuotas("ns").Delete(t.Context(), "q", metav1.DeleteOptions{}))
	j.await(t, "no quota ns/q")
}

func TestGPUQuota(t *testing.T) {
	config := func(value string) *v1.ConfigMap {
		return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "gpuquota"}, Data: map[string]string{quota.ConfigMapKey: value}}
	}
	client := fake.NewClientset(config(`{"ns":{"pool":["p"],"quota":{"M40":2}}}`))
	j := &journal{}
	f, err := NewFeed(NewInformers(client), j)
	require.NoError(t, err)
	factory, err := f.GPUQuota(client, "kube-system", "gpuquota", j, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	factory.Start(t.Context().Done())
	j.await(t, "GPUs true")
	for _, value := range []string{`{"ns":`, `{"ns":{"pool":[],"quota":{}}}`} { // the malformed one changes nothing
		_, err := client.CoreV1().ConfigMaps("kube-system").Update(t.Context(), config(value), metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	j.await(t, "GPUs true")
	require.NoError(t, client.CoreV1().ConfigMaps("kube-system").Delete(t.Context(), "gpuquota", metav1.DeleteOptions{}))
	j.await(t, "GPUs false")
}

// quotas records all it receives.
type quotas struct {
	journal
	gpus *quota.GPUs
}

func (q *quotas) SetGPUQuota(c *quota.GPUs) {
	q.gpus = c // before the journal records
	q.journal.SetGPUQuota(c)
}

func TestInvalidGPUQuota(t *testing.T) {
	config := func(value string) *v1.ConfigMap {
		return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "gpuquota"}, Data: map[string]string{quota.ConfigMapKey: value}}
	}
	client := fake.NewClientset(config(`{"ns":`))
	q := &quotas{}
	f, err := NewFeed(NewInformers(client), q)
	require.NoError(t, err)
	factory, err := f.GPUQuota(client, "kube-system", "gpuquota", q, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	factory.Start(t.Context().Done())
	check := func() error {
		book := quota.NewAccounts()
		book.SetGPUs(q.gpus)
		account := book.Account("other")
		if !account.Limited() {
			return nil
		}
		return account.CheckNode(nil, quota.Charge{GPUPercent: 1})
	}
	q.await(t, "GPUs true")
	require.ErrorContains(t, check(), "no namespace gets GPUs until it is fixed")
	_, err = client.CoreV1().ConfigMaps("kube-system").Update(t.Context(), config(`{"ns":{"quota":{}}}`), metav1.UpdateOptions{})
	require.NoError(t, err)
	q.await(t, "GPUs true")
	require.NoError(t, check(), "it limits only another namespace")
}

func TestQuotaWithScopes(t *testing.T) {
	scoped := resourceQuota("1k")
	scoped.Spec.Scopes = []v1.ResourceQuotaScope{v1.ResourceQuotaScopeNotTerminating}
	scoped.Annotations = map[string]string{api.AnnotationQuotaPool: "research"}
	selected := resourceQuota("1k")
	selected.Name, selected.Spec.ScopeSelector = "r", &v1.ScopeSelector{MatchExpressions: []v1.ScopedResourceSelectorRequirement{
		{ScopeName: v1.ResourceQuotaScopePriorityClass, Operator: v1.ScopeSelectorOpIn, Values: []string{"high"}}}}
	client := fake.NewClientset(scoped, selected)
	factory, j := NewInformers(client), &journal{}
	f, err := NewFeed(factory, j)
	require.NoError(t, err)
	require.NoError(t, f.Quotas(factory, j, request.DefaultOptions(), slog.New(slog.DiscardHandler)))
	factory.Start(t.Context().Done())
	require.NoError(t, f.Wait(t.Context()))
	var got []string
	require.Eventually(t, func() bool { got = append(got, j.take()...); return len(got) >= 2 }, time.Minute, time.Millisecond)
	cores := fmt.Sprint(quota.Unlimited)
	require.ElementsMatch(t, []string{`quota ns/q 1000 MiB ` + cores + ` cores [{NotTerminating Exists []}] "research"`,
		`quota ns/r 1000 MiB ` + cores + ` cores [{PriorityClass In [high]}] ""`}, got)
}

// What scopes select by survives Slim, which the extender's caches are made with.
func TestClass(t *testing.T) {
	deadline := int64(0)
	p := &v1.Pod{Spec: v1.PodSpec{PriorityClassName: "high", ActiveDeadlineSeconds: &deadline,
		Affinity: &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{
			{PodAffinityTerm: v1.PodAffinityTerm{Namespaces: []string{"other"}}}}}}},
		Status: v1.PodStatus{QOSClass: v1.PodQOSBestEffort}}
	want := scheduler.Class{PriorityClass: "high", Terminating: true, BestEffort: true, CrossNamespace: true}
	require.Equal(t, want, convert.Pod(p).Class)
	require.Equal(t, want, convert.Pod(slimPod(p)).Class)
	require.Equal(t, scheduler.Class{}, convert.Pod(slimPod(&v1.Pod{Spec: v1.PodSpec{Affinity: &v1.Affinity{PodAffinity: &v1.PodAffinity{}}}})).Class)
}

func TestGrantOfPendingPodIsRemoved(t *testing.T) {
	forged := pod("u1", "", v1.PodPending, "1")
	forged.Annotations[api.AnnotationGrant] = "forged"
	require.Equal(t, map[string]string{"a": "1"}, trusted(convert.Pod(forged)).Annotations)
	require.Len(t, forged.Annotations, 2, "the informer's object is not changed")
	bound := forged.DeepCopy()
	bound.Spec.NodeName = "n1"
	require.Equal(t, bound.Annotations, trusted(convert.Pod(bound)).Annotations)
}
