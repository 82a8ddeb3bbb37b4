//go:build kueue

package kueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/kube"
)

// amounts are of resources, as texts.
type amounts map[corev1.ResourceName]string

func (a amounts) list() corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, amount := range a {
		list[name] = resource.MustParse(amount)
	}
	return list
}

// share requests GPUs, MiB and cores of each.
func share(gpus, memoryMiB, cores int) amounts {
	a := amounts{}
	for name, n := range map[corev1.ResourceName]int{"nvidia.com/gpu": gpus, "nvidia.com/gpumem": memoryMiB, "nvidia.com/gpucores": cores} {
		if n > 0 {
			a[name] = fmt.Sprint(n)
		}
	}
	return a
}

// counted is what Kueue counts.
func counted(gpus, memoryMiB, cores int) amounts {
	return amounts{"nvidia.com/gpu": fmt.Sprint(gpus), "nvidia.com/total-gpumem": fmt.Sprint(memoryMiB), "nvidia.com/total-gpucores": fmt.Sprint(cores)}
}

// queue is a queue of a namespace, as on the page, and what jobs of it are made of.
type queue struct {
	*cluster
	namespace string
	job       batchv1.Job
}

// template has a container for each request.
func (q *queue) template(requests ...amounts) corev1.PodTemplateSpec {
	template := *q.job.Spec.Template.DeepCopy()
	container := template.Spec.Containers[0]
	template.Spec.Containers = nil
	for i, request := range requests {
		container.Name, container.Resources = fmt.Sprint("c", i), corev1.ResourceRequirements{Limits: request.list()}
		template.Spec.Containers = append(template.Spec.Containers, container)
	}
	return template
}

// submit creates a job.
func (q *queue) submit(t *testing.T, pods int32, template corev1.PodTemplateSpec) *batchv1.Job {
	t.Helper()
	job := q.job.DeepCopy()
	job.Name, job.GenerateName = "", job.Name+"-"
	job.Spec.Parallelism, job.Spec.Completions = &pods, &pods
	job.Spec.Template = template
	require.NoError(t, q.Create(t.Context(), job))
	return job
}

// workload is Kueue's object of a job or pod.
func (q *queue) workload(ctx context.Context, of client.Object) (*kueue.Workload, error) {
	var list kueue.WorkloadList
	if err := q.List(ctx, &list, client.InNamespace(q.namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if slices.ContainsFunc(list.Items[i].OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == of.GetUID() }) {
			return &list.Items[i], nil
		}
	}
	return nil, fmt.Errorf("%s has no Workload", of.GetName())
}

// admitted waits until Kueue admits a job or pod, and requires what it counts for it.
func (q *queue) admitted(t *testing.T, of client.Object, want amounts) {
	t.Helper()
	var got corev1.ResourceList
	q.until(t, func(ctx context.Context) error {
		w, err := q.workload(ctx, of)
		if err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(w.Status.Conditions, kueue.WorkloadAdmitted) {
			return fmt.Errorf("it is not admitted: %v", w.Status.Conditions)
		}
		got = w.Status.Admission.PodSetAssignments[0].ResourceUsage
		return nil
	})
	requireAmounts(t, want, got)
}

func requireAmounts(t *testing.T, want amounts, got corev1.ResourceList) {
	t.Helper()
	texts := amounts{}
	for name, amount := range got {
		if !amount.IsZero() {
			texts[name] = amount.String()
		}
	}
	expected := amounts{}
	for name, amount := range want.list() {
		if !amount.IsZero() {
			expected[name] = amount.String()
		}
	}
	require.Equal(t, expected, texts)
}

// refused waits until Kueue has refused a job or pod for now, for a reason that contains the text.
func (q *queue) refused(t *testing.T, of client.Object, reason string) {
	t.Helper()
	q.until(t, func(ctx context.Context) error {
		w, err := q.workload(ctx, of)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(w.Status.Conditions, kueue.WorkloadQuotaReserved)
		if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, reason) {
			return fmt.Errorf("it is not refused by %q: %v", reason, w.Status.Conditions)
		}
		return nil
	})
	if job, is := of.(*batchv1.Job); is {
		require.NoError(t, q.Get(t.Context(), client.ObjectKeyFromObject(job), job))
		require.True(t, *job.Spec.Suspend)
		require.Empty(t, q.podsOf(t, job))
	}
}

func (q *queue) podsOf(t *testing.T, job *batchv1.Job) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	require.NoError(t, q.List(t.Context(), &pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}))
	return pods.Items
}

// placed waits until a job's pods have nodes and grants.
func (q *queue) placed(t *testing.T, job *batchv1.Job) (pods []corev1.Pod) {
	t.Helper()
	q.until(t, func(context.Context) error {
		pods = q.podsOf(t, job)
		if len(pods) != int(*job.Spec.Parallelism) {
			return fmt.Errorf("%s has %d pods", job.Name, len(pods))
		}
		for i := range pods {
			if err := granted(&pods[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return pods
}

func granted(pod *corev1.Pod) error {
	if pod.Spec.NodeName == "" || pod.Annotations[api.AnnotationGrant] == "" {
		return fmt.Errorf("pod %s has no node or no grant: %v, gates %v", pod.Name, pod.Status.Conditions, pod.Spec.SchedulingGates)
	}
	return nil
}

// succeed is the kubelet: the pods' containers end.
func (q *queue) succeed(t *testing.T, pods ...corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))
		require.NoError(t, q.SubResource("status").Patch(t.Context(), &pod, patch))
	}
}

// finish ends an admitted job.
func (q *queue) finish(t *testing.T, job *batchv1.Job) {
	t.Helper()
	q.succeed(t, q.placed(t, job)...)
	q.until(t, func(ctx context.Context) error {
		if err := q.Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if job.Status.CompletionTime == nil {
			return fmt.Errorf("%s is not complete: %v", job.Name, job.Status.Conditions)
		}
		return nil
	})
}

// withdraw deletes a job or pod that waits.
func (q *queue) withdraw(t *testing.T, of client.Object) {
	t.Helper()
	require.NoError(t, q.Delete(t.Context(), of, client.PropagationPolicy(metav1.DeletePropagationBackground), client.GracePeriodSeconds(0)))
	q.until(t, func(ctx context.Context) error {
		if err := q.Get(ctx, client.ObjectKeyFromObject(of), of); !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s is there: %w", of.GetName(), errors.Join(err))
		}
		return nil
	})
}

// TestQueue runs Kueue with the page's manifests.
func TestQueue(t *testing.T) {
	text := manifests(t)
	c := newCluster(t, text.configuration)
	namespace := read[kueue.LocalQueue](t, text.queue[2]).Namespace
	require.NoError(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	c.apply(t, []byte(strings.Join(text.queue, "\n---\n")))
	q := &queue{cluster: c, namespace: namespace, job: read[batchv1.Job](t, text.job)}
	c.until(t, func(ctx context.Context) error {
		return c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "default"}, &corev1.ServiceAccount{})
	})
	t.Run("jobs", q.jobs)
	t.Run("sums", q.sums)
	t.Run("pods", q.pods)
	t.Run("groups", q.groups)
	t.Run("flavors", q.flavors)
	t.Run("claims", func(t *testing.T) { q.claims(t, text) })
	t.Run("notReady", q.notReady)
}

// jobs: the page's job is admitted and placed, another waits for its end, and a smaller one passes it.
func (q *queue) jobs(t *testing.T) {
	first := q.submit(t, 1, q.job.Spec.Template)
	q.admitted(t, first, counted(2, 6000, 60))
	q.placed(t, first)
	second := q.submit(t, 1, q.job.Spec.Template)
	q.refused(t, second, "insufficient unused quota for nvidia.com/total-gpumem in flavor gpu, 2k more needed")
	small := q.submit(t, 1, q.template(share(1, 4000, 10)))
	q.admitted(t, small, counted(1, 4000, 10))
	q.finish(t, small)
	q.refused(t, second, "2k more needed")
	q.finish(t, first)
	q.admitted(t, second, counted(2, 6000, 60))
	q.finish(t, second)
}

// sums are of all pods of a job, and of the containers of a pod.
func (q *queue) sums(t *testing.T) {
	for name, tc := range map[string]struct {
		pods     int32
		requests []amounts
		want     amounts
	}{
		"three pods":                           {3, []amounts{share(2, 1000, 10)}, counted(6, 6000, 60)},
		"cores of a container with three GPUs": {1, []amounts{share(3, 1000, 20)}, counted(3, 3000, 60)},
		"a container without GPUs":             {1, []amounts{share(2, 1000, 10), {"cpu": "1"}}, amounts{"nvidia.com/gpu": "2", "nvidia.com/total-gpumem": "2k", "nvidia.com/total-gpucores": "20", "cpu": "1"}},
		"containers with GPUs: too many":       {1, []amounts{share(2, 1000, 10), share(1, 1000, 10)}, counted(3, 6000, 60)},
		"without the number of GPUs":           {1, []amounts{share(0, 1000, 10)}, counted(0, 1000, 10)},
		"without an amount: a whole GPU is 0":  {1, []amounts{share(1, 0, 0)}, counted(1, 0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			job := q.submit(t, tc.pods, q.template(tc.requests...))
			q.admitted(t, job, tc.want)
			q.finish(t, job)
		})
	}
	job := q.submit(t, 1, q.template(share(3, 1000, 100)))
	q.refused(t, job, "insufficient quota for nvidia.com/total-gpucores")
	q.withdraw(t, job)
	uncovered := q.submit(t, 1, q.template(amounts{"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}))
	q.refused(t, uncovered, "nvidia.com/gpumem-percentage unavailable in ClusterQueue")
	q.withdraw(t, uncovered)
}

// pods without a job: the webhook completes them before Kueue reads them.
func (q *queue) pods(t *testing.T) {
	newPod := func(name string, request amounts) *corev1.Pod {
		template := q.template(request)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: q.namespace, Labels: q.job.Labels}, Spec: template.Spec}
		require.NoError(t, q.Create(t.Context(), pod))
		require.NotEmpty(t, pod.Spec.SchedulingGates)
		require.Equal(t, kube.Framework.SchedulerName(), pod.Spec.SchedulerName)
		return pod
	}
	placed := func(pod *corev1.Pod) {
		q.until(t, func(ctx context.Context) error {
			if err := q.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
				return err
			}
			return granted(pod)
		})
	}
	first := newPod("first", share(0, 6000, 10))
	q.admitted(t, first, counted(1, 6000, 10))
	placed(first)
	second := newPod("second", share(1, 6000, 10))
	q.refused(t, second, "2k more needed")
	require.NoError(t, q.Get(t.Context(), client.ObjectKeyFromObject(second), second))
	require.Empty(t, second.Spec.NodeName)
	require.Contains(t, second.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "kueue.x-k8s.io/admission"})
	q.succeed(t, *first)
	q.admitted(t, second, counted(1, 6000, 10))
	placed(second)
	q.succeed(t, *second)
}

// groups: the pods of a job are admitted together, and placed together as a group.
func (q *queue) groups(t *testing.T) {
	template := q.template(share(1, 1000, 10))
	template.Labels = map[string]string{api.LabelGroup: "group"}
	template.Annotations = map[string]string{api.AnnotationGroupMin: "3"}
	job := q.submit(t, 3, template)
	q.admitted(t, job, counted(3, 3000, 30))
	q.finish(t, job)
}

// flavors: the labels of the flavor that Kueue chooses are those of the pods' nodes.
func (q *queue) flavors(t *testing.T) {
	const second = "node-2"
	require.NoError(t, kube.CreateNode(t.Context(), q.API, second, 4, kube.GPUs(1, 4, 80<<10, nil)))
	require.NoError(t, q.Create(t.Context(), &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: second},
		Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{corev1.LabelHostname: second}}}))
	var cluster kueue.ClusterQueue
	require.NoError(t, q.Get(t.Context(), client.ObjectKey{Name: q.namespace}, &cluster))
	cluster.ObjectMeta = metav1.ObjectMeta{Name: second}
	cluster.Spec.ResourceGroups[0].Flavors[0].Name = second
	require.NoError(t, q.Create(t.Context(), &cluster))
	require.NoError(t, q.Create(t.Context(), &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Name: second, Namespace: q.namespace},
		Spec: kueue.LocalQueueSpec{ClusterQueue: second}}))
	defer q.using(second)()
	job := q.submit(t, 2, q.template(share(1, 1000, 10)))
	for _, pod := range q.placed(t, job) {
		require.Equal(t, second, pod.Spec.NodeName)
	}
	q.finish(t, job)
}

// using makes new jobs name another queue, until the function is called that it returns.
func (q *queue) using(name string) func() {
	before := q.job.Labels
	q.job.Labels = map[string]string{"kueue.x-k8s.io/queue-name": name}
	return func() { q.job.Labels = before }
}

// notReady: a job that is admitted, but has no place, gives its quota back.
func (q *queue) notReady(t *testing.T) {
	q.startKueue(t, map[string]any{"waitForPodsReady": map[string]any{"timeout": "1s", "requeuingStrategy": map[string]any{"backoffLimitCount": 0}}})
	nowhere := q.template(share(2, 5000, 10))
	nowhere.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "none"}
	job := q.submit(t, 1, nowhere)
	q.until(t, func(ctx context.Context) error {
		w, err := q.workload(ctx, job)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(w.Status.Conditions, kueue.WorkloadEvicted)
		if c == nil || c.Status != metav1.ConditionTrue || w.Status.Admission != nil {
			return fmt.Errorf("it has its quota: %v", w.Status.Conditions)
		}
		return nil
	})
	q.withdraw(t, job)
}

// claims: Kueue counts the devices of ResourceClaimTemplates, and refuses what it can't count.
func (q *queue) claims(t *testing.T, text page) {
	const classes = "gpu.gpuslice.io"
	template := func(name string, change func(*resourcev1.ExactDeviceRequest)) {
		request := &resourcev1.ExactDeviceRequest{DeviceClassName: classes, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
			Capacity: &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse("30Gi")}}}
		change(request)
		require.NoError(t, q.Create(t.Context(), &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: q.namespace},
			Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
				Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: request}}}}}}))
	}
	template("share", func(*resourcev1.ExactDeviceRequest) {})
	template("selected", func(r *resourcev1.ExactDeviceRequest) {
		r.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: "true"}}}
	})
	with := func(claim corev1.PodResourceClaim) corev1.PodTemplateSpec {
		claim.Name = "gpu"
		of := q.template(amounts{})
		of.Spec.ResourceClaims = []corev1.PodResourceClaim{claim}
		of.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
		return of
	}
	from := func(name string) corev1.PodTemplateSpec {
		return with(corev1.PodResourceClaim{ResourceClaimTemplateName: &name})
	}
	finish := func(job *batchv1.Job) {
		q.until(t, func(context.Context) error {
			if pods := q.podsOf(t, job); len(pods) != int(*job.Spec.Parallelism) {
				return fmt.Errorf("%s has %d pods", job.Name, len(pods))
			}
			return nil
		})
		q.succeed(t, q.podsOf(t, job)...)
	}

	// Without the feature gate they are not counted at all.
	uncounted := q.submit(t, 2, from("share"))
	q.admitted(t, uncounted, amounts{})
	finish(uncounted)

	var more map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text.claims), &more))
	q.startKueue(t, more)
	q.apply(t, []byte(strings.Join(text.claimQueue, "\n---\n")))
	defer q.using(read[kueue.LocalQueue](t, text.claimQueue[1]).Name)()
	first := q.submit(t, 3, from("share"))
	q.admitted(t, first, amounts{"gpuslice.io/shares": "3"})
	second := q.submit(t, 2, from("share"))
	q.refused(t, second, "insufficient unused quota for gpuslice.io/shares in flavor gpu, 1 more needed")
	finish(first)
	q.admitted(t, second, amounts{"gpuslice.io/shares": "2"})
	finish(second)

	claim := "shared"
	for reason, template := range map[string]corev1.PodTemplateSpec{
		"CEL selectors are not supported":         from("selected"),
		"does not support use of resource claims": with(corev1.PodResourceClaim{ResourceClaimName: &claim}),
	} {
		job := q.submit(t, 1, template)
		q.refused(t, job, reason)
		q.withdraw(t, job)
	}
}
