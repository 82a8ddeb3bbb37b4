//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// deploy makes a Deployment of a pod.
func (s *space) deploy(replicas int32, p *corev1.Pod) {
	_, err := s.tenant.AppsV1().Deployments(s.name).Create(context.Background(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: p.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels, Annotations: p.Annotations}, Spec: p.Spec},
		},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

func (s *space) scale(name string, replicas int) {
	_, err := s.tenant.AppsV1().Deployments(s.name).Patch(context.Background(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{})
	require.NoError(s.t, err)
}

// waitRunning waits until so many pods of an app run, and no others are there.
func (s *space) waitRunning(app string, want int) []corev1.Pod {
	var pods []corev1.Pod
	require.NoError(s.t, harness.Until(context.Background(), patience, func(ctx context.Context) error {
		list, err := cluster.API.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		// Those that the kubelet has taken back stay there (reservations looks at them).
		pods = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		for i := range pods {
			if err := kube.Running(&pods[i]); err != nil {
				return fmt.Errorf("pod %s: %w", pods[i].Name, err)
			}
			if pods[i].DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is going", pods[i].Name)
			}
		}
		if len(pods) != want {
			return fmt.Errorf("%d pods of %d are there", len(pods), want)
		}
		return nil
	}))
	return pods
}

// Forty pods that fill the node exactly: all run, each within its limits. One more
// waits, and starts as soon as one of them is gone.
func TestDeploymentOfForty(t *testing.T) {
	s := newSpace(t)
	const memoryMiB, cores = 16000, 20 // five a GPU, by its cores
	began := time.Now()
	s.deploy(40, pod("forty", container("main", gpu(memoryMiB, cores))))
	pods := s.waitRunning("forty", 40)
	t.Logf("40 pods run after %.1f s", time.Since(began).Seconds())
	perGPU := map[string]int{}
	for i := range pods {
		devices := s.devices(&pods[i], "main")
		require.Len(t, devices, 1)
		require.Equal(t, int64(memoryMiB), devices[0].totalMiB)
		perGPU[devices[0].uuid]++
	}
	for _, uuid := range gpus(t) {
		require.Equal(t, 5, perGPU[uuid], uuid)
	}

	s.create(pod("waits", container("main", gpu(memoryMiB, cores))))
	came, _, says := s.cameOf("waits")
	require.Equal(t, unscheduled, came)
	t.Logf("message of the pending pod: %s", says)

	// The order of the events counts: gone, then bound, then running. The log has the time that it took.
	watched, err := cluster.API.CoreV1().Pods(s.name).Watch(context.Background(), metav1.ListOptions{})
	require.NoError(t, err)
	defer watched.Stop()
	s.scale("forty", 39)
	var gone, bound time.Time
	limit := time.After(patience)
	for running := false; !running; {
		select {
		case event := <-watched.ResultChan():
			p, isPod := event.Object.(*corev1.Pod)
			switch {
			case !isPod:
				require.Fail(t, "the watch broke", "%v", event)
			case gone.IsZero() && p.Name != "waits" && (event.Type == watch.Deleted || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed):
				gone = time.Now() // its containers have ended
			case p.Name == "waits" && p.Spec.NodeName != "" && bound.IsZero():
				bound = time.Now()
				require.False(t, gone.IsZero(), "bound before there was room")
			}
			running = p.Name == "waits" && kube.Running(p) == nil
		case <-limit:
			require.Fail(t, "the pod that waited does not run", cluster.Events(context.Background(), s.name, "waits"))
		}
	}
	t.Logf("after the other had ended, it was bound in %.3f s and ran in %.3f s", bound.Sub(gone).Seconds(), time.Since(gone).Seconds())
	s.requireHeld(s.wait("waits", kube.Running), "main", memoryMiB)
}

// A namespace's quota counts what its pods have of each GPU, which Kubernetes can't.
func TestQuota(t *testing.T) {
	s := newSpace(t)
	_, err := cluster.API.CoreV1().ResourceQuotas(s.name).Create(context.Background(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "gpus"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			"limits.nvidia.com/gpumem": resource.MustParse("10000"), "limits.nvidia.com/gpucores": resource.MustParse("100"),
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.run(pod("fits", container("main", gpu(6000, 30))))
	for name, ask := range map[string]resources{
		"memory":           gpu(6000, 10),
		"memory-of-two":    {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "2500"},
		"compute-time":     gpu(1000, 80),
		"a-whole-one-more": {"nvidia.com/gpu": "1"},
	} {
		says := ""
		_, err := s.tenant.CoreV1().Pods(s.name).Create(context.Background(), pod(name, container("main", ask)), metav1.CreateOptions{})
		if err != nil {
			says = err.Error()
		} else {
			var came outcome
			came, _, says = s.cameOf(name)
			require.Equal(t, unscheduled, came, name)
		}
		require.Contains(t, says, "quota", name)
	}
	s.run(pod("fits-too", container("main", gpu(4000, 30))))
}

// The namespaces of a pool lend what they don't use, and take it back.
func TestQuotaPool(t *testing.T) {
	ctx := context.Background()
	lender, borrower := newSpace(t), newSpace(t)
	defer lender.empty() // before the other one is cleared, after which no GPU may be in use
	for _, s := range []*space{lender, borrower} {
		_, err := cluster.API.CoreV1().ResourceQuotas(s.name).Create(ctx, &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "gpus", Annotations: map[string]string{"gpuslice.io/quota-pool": "pool-" + lender.name}},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"limits.nvidia.com/gpumem": resource.MustParse("10000")}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	borrower.deploy(2, pod("app", container("main", gpu(8000, 10))))
	for _, p := range borrower.waitRunning("app", 2) {
		borrower.requireHeld(&p, "main", 8000) // 16,000 MiB of its 10,000
	}
	// The lender is within its own quota: a pod of the borrower goes.
	lender.requireHeld(lender.run(pod("own", container("main", gpu(8000, 10)))), "main", 8000)
	running, waits := 0, ""
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		list, err := cluster.API.CoreV1().Pods(borrower.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		running, waits = 0, ""
		for _, p := range list.Items {
			switch {
			case kube.Running(&p) == nil && p.DeletionTimestamp == nil:
				running++
			case p.Spec.NodeName == "":
				waits = p.Name
			}
		}
		if running != 1 || waits == "" {
			return fmt.Errorf("%d pods of the borrower run, and %q waits", running, waits)
		}
		return nil
	}))
	came, _, says := borrower.cameOf(waits)
	require.Equal(t, unscheduled, came)
	require.Contains(t, says, "quota")
	// What is beyond its own quota takes nothing back.
	lender.create(pod("more", container("main", gpu(5000, 10))))
	came, _, says = lender.cameOf("more")
	require.Equal(t, unscheduled, came)
	require.Contains(t, says, "quota")
	lender.delete("more")
	lender.delete("own")
	borrower.waitRunning("app", 2)
}

// Without a minimum, from the annotation or a PodGroup, no pod of a group is placed. The cluster does not have
// coscheduling's API.
func TestGroup(t *testing.T) {
	s := newSpace(t)
	member := func(name, group string, annotations map[string]string) *corev1.Pod {
		p := pod(name, container("main", gpu(1000, 10)))
		p.Labels, p.Annotations = map[string]string{"scheduling.x-k8s.io/pod-group": group}, annotations
		return p
	}
	create := func(p *corev1.Pod) {
		_, err := s.tenant.CoreV1().Pods(s.name).Create(context.Background(), p, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	create(member("unknown", "g", nil))
	came, _, says := s.cameOf("unknown")
	require.Equal(t, unscheduled, came)
	require.Contains(t, says, "it is not known how many pods must be scheduled together")
	two := map[string]string{"gpuslice.io/pod-group-min": "2"}
	create(member("first", "two", two))
	came, _, says = s.cameOf("first")
	require.Equal(t, unscheduled, came)
	require.Contains(t, says, "has 1 of the 2 pods that must be scheduled together")
	create(member("second", "two", two))
	s.wait("first", kube.Running)
	s.wait("second", kube.Running)
}

// gpu-manager's quota: how many GPUs of a model a namespace may have.
func TestGPUQuota(t *testing.T) {
	ctx := context.Background()
	label := func(value string) {
		_, err := cluster.API.CoreV1().Nodes().Patch(ctx, harness.NodeName, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"gaia.tencent.com/gpu-model":`+value+`}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	s, other := newSpace(t), newSpace(t)
	defer s.empty() // before the other one is cleared, after which no GPU may be in use
	label(`"H200"`)
	t.Cleanup(func() { label("null") })
	namespace, name, _ := strings.Cut(kube.GPUQuota, "/")
	maps := cluster.API.CoreV1().ConfigMaps(namespace)
	_, err := maps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"gpu_quota": `{"` + s.name + `":{"quota":{"H200":1}}}`},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, maps.Delete(ctx, name, metav1.DeleteOptions{})) })

	// The scheduler gets the ConfigMap after a delay: until then nothing is limited.
	require.NoError(t, harness.Until(ctx, patience, func(context.Context) error {
		s.create(pod("try", container("main", resources{"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1000", "nvidia.com/gpucores": "60"})))
		defer s.delete("try")
		if came, _, says := s.cameOf("try"); came != unscheduled {
			return fmt.Errorf("more than the quota is %s %s", came, says)
		}
		return nil
	}))
	s.run(pod("fits", container("main", gpu(1000, 60))))
	s.create(pod("waits", container("main", gpu(1000, 60))))
	came, _, says := s.cameOf("waits")
	require.Equal(t, unscheduled, came)
	require.Contains(t, says, "quota")
	s.run(pod("fits-too", container("main", gpu(1000, 40))))
	other.run(pod("of-others", container("main", gpu(1000, 60))))
}

// priorityClasses makes the classes low and high, after the name of the namespace.
func (s *space) priorityClasses() {
	for class, value := range map[string]int32{"low": 10, "high": 1000} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: s.name + "-" + class}, Value: value}
		_, err := cluster.API.SchedulingV1().PriorityClasses().Create(context.Background(), class, metav1.CreateOptions{})
		require.NoError(s.t, err)
		s.t.Cleanup(func() {
			require.NoError(s.t, cluster.API.SchedulingV1().PriorityClasses().Delete(context.Background(), class.Name, metav1.DeleteOptions{}))
		})
	}
}

// preempt runs a pod of a low priority class, and then one of a high class for which there
// is no room beside it: the first one goes.
func preempt(t *testing.T, low, high resources, annotations map[string]string) {
	ctx := context.Background()
	s := newSpace(t)
	s.priorityClasses()
	for _, one := range []struct {
		name string
		ask  resources
	}{{"low", low}, {"high", high}} {
		p := pod(one.name, container("main", one.ask))
		p.Annotations = annotations
		p.Spec.PriorityClassName = s.name + "-" + one.name
		p = s.run(p)
		require.NotEmpty(t, s.devices(p, "main"))
	}
	// It has ended, and its object goes a moment later.
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		pods, err := cluster.API.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			require.True(t, p.Name == "high" || p.DeletionTimestamp != nil, "%s runs on", p.Name)
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d pods", len(pods.Items))
		}
		return nil
	}), "the other was taken off")
}

// A pod of a higher priority class takes the place of one of a lower.
func TestPreemption(t *testing.T) {
	t.Run("gpus", func(t *testing.T) {
		withAgent(t, "nvidia.com/gpu", 8, "--device-split-count=1")
		preempt(t, resources{"nvidia.com/gpu": "8", "nvidia.com/gpumem": "1000"}, gpu(1000, 10), nil)
	})
	oneGPU := map[string]string{"nvidia.com/use-gpuuuid": gpus(t)[6]}
	t.Run("memory", func(t *testing.T) { preempt(t, gpu(60000, 0), gpu(60000, 0), oneGPU) })
	t.Run("compute time", func(t *testing.T) { preempt(t, gpu(1000, 60), gpu(1000, 60), oneGPU) })
}

// A group of a higher priority class takes the place of one of a lower: all pods of that are evicted. For a group that would
// not fit none is.
func TestGroupPreemption(t *testing.T) {
	ctx := context.Background()
	s := newSpace(t)
	s.priorityClasses()
	// Each has room for one pod: the first is an H200, the others are A100.
	three := map[string]string{"nvidia.com/use-gpuuuid": strings.Join(gpus(t)[5:8], ",")}
	members := func(group, class string, n int) (pods []*corev1.Pod) {
		for i := range n {
			p := pod(fmt.Sprint(group, "-", i), container("main", gpu(80000, 10)))
			p.Labels["scheduling.x-k8s.io/pod-group"] = group
			p.Annotations = maps.Clone(three)
			p.Annotations["gpuslice.io/pod-group-min"] = fmt.Sprint(n)
			p.Spec.PriorityClassName = s.name + "-" + class
			pods = append(pods, s.create(p))
		}
		return pods
	}
	members("old", "low", 2)
	s.wait("old-0", kube.Running)
	s.wait("old-1", kube.Running)
	stays := pod("stays", container("main", gpu(80000, 10)))
	stays.Annotations, stays.Spec.PriorityClassName = three, s.name+"-high"
	s.run(stays)

	for _, p := range members("large", "high", 3) {
		came, _, says := s.cameOf(p.Name)
		require.Equal(t, unscheduled, came)
		require.NotEmpty(t, says)
	}
	for i := range 3 {
		s.delete(fmt.Sprint("large-", i))
	}
	for _, name := range []string{"old-0", "old-1"} {
		p, err := cluster.API.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Nil(t, p.DeletionTimestamp, "no pod is evicted for a group that does not fit")
	}

	members("new", "high", 2)
	for i := range 2 {
		require.NotEmpty(t, s.devices(s.wait(fmt.Sprint("new-", i), kube.Running), "main"))
	}
	for _, name := range []string{"old-0", "old-1"} {
		require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
			_, err := cluster.API.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("pod %s is there: %v", name, err)
		}))
	}
	s.wait("stays", kube.Running)
}
