package plugin

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

func (w *world) evictableNames() (names []string) {
	pods, _ := w.pods.List(labels.Everything())
	free := w.evictable()
	for _, p := range pods {
		if free(engine.Victim{UID: string(p.UID)}) {
			names = append(names, p.Name)
		}
	}
	return names
}

// The quota is used up by less important pods on two nodes. DefaultPreemption finds none: those of one node are too few.
func TestReclaim(t *testing.T) {
	prioritized := func(pod *v1.Pod, priority int32) *v1.Pod {
		pod.Spec.Priority = &priority
		pod.Labels = map[string]string{"app": pod.Name}
		return pod
	}
	protected := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "low-2"}}
	protected.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "low-2"}}
	protected.Spec.MinAvailable = &intstr.IntOrString{IntVal: 1}
	w := newWorld(t, "", gpuNode("n1", 1, 1), gpuNode("n2", 1, 2), gpuNode("n3", 1, 3), protected)
	for i := range 3 {
		pod := w.placed(t, prioritized(gpuPod(fmt.Sprint("low-", i), 20000, 0), 0), fmt.Sprint("n", i+1))
		_, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return len(w.evictableNames()) == 2 }, time.Minute, time.Millisecond, "not the protected one")
	w.engine.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 60000, Cores: quota.Unlimited}})
	var evicted []string
	w.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e, ok := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if ok {
			evicted = append(evicted, e.Name)
		}
		return ok, e, nil
	})
	high := prioritized(gpuPod("high", 40000, 0), 5)
	try := func() string {
		require.True(t, w.preFilter(t, high).IsSuccess())
		result, status := w.PostFilter(t.Context(), w.state, high, nil)
		if !status.IsSuccess() {
			return ""
		}
		return result.NominatedNodeName
	}
	never := v1.PreemptNever
	high.Spec.PreemptionPolicy = &never
	require.Empty(t, try())
	high.Spec.PreemptionPolicy = nil
	require.NotEmpty(t, try())
	require.ElementsMatch(t, []string{"low-0", "low-1"}, evicted)
	require.Empty(t, try(), "they are about to end")
	require.Len(t, evicted, 2)
}
