package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// BenchmarkPods schedules and binds pods with all of kube-scheduler on 1,000 nodes of 8 GPUs: the processor time of a pod, the
// extender's included. The API server costs next to nothing: it answers a Binding, or a patch, with an event. claims is an
// unmodified kube-scheduler with ResourceClaims for the same shares.
func BenchmarkPods(b *testing.B) {
	for _, kind := range []struct {
		name, config string
		gpus         bool
	}{{"no-GPUs", shipped, false}, {"plugin", shipped, true}, {"extender", extended, true}, {"claims", stock, false}} {
		b.Run(kind.name, func(b *testing.B) { benchPods(b, kind.config, kind.gpus, kind.name == "claims") })
	}
}

func benchPods(b *testing.B, config string, gpus, claims bool) {
	pods := make(map[string]*v1.Pod, b.N)
	objects := nodes(1000, 8, nil)
	if claims {
		objects = append(objects, slicesOf(1000, 8)...)
	}
	for i := range b.N {
		pod := gpuPod(fmt.Sprintf("p%06d", i), 0, 8000, 10)
		list := v1.ResourceList{}
		if gpus {
			list = pod.Spec.Containers[0].Resources.Limits
		}
		list["cpu"] = resource.MustParse("100m")
		pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: list, Requests: list}
		if claims {
			pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &pod.Name}}
			pod.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
			objects = append(objects, shareClaim(pod.Name, 8000, 10))
		}
		pods[pod.Name] = pod
	}
	const atOnce = 50
	waiting, events := make(chan struct{}, atOnce), watch.NewBroadcaster(2*atOnce, watch.WaitIfChannelFull)
	send := func(kind watch.EventType, pod *v1.Pod) { require.NoError(b, events.Action(kind, pod)) }
	c := &cluster{Clientset: fake.NewClientset(objects...)}
	c.PrependReactor("update", "resourceclaims", c.newVersion())
	c.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		w, err := events.Watch()
		return true, w, err
	})
	var changing sync.Mutex
	change := func(name string, change func(*v1.Pod)) *v1.Pod {
		changing.Lock()
		defer changing.Unlock()
		pod := pods[name].DeepCopy()
		change(pod)
		pod.ResourceVersion, pods[name] = rand.Text(), pod
		send(watch.Modified, pod)
		return pod
	}
	c.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		binding := action.(clienttesting.CreateAction).GetObject().(*v1.Binding)
		change(binding.Name, func(pod *v1.Pod) { pod.Spec.NodeName, pod.Annotations = binding.Target.Name, binding.Annotations })
		<-waiting
		return true, binding, nil
	})
	nominations := 0
	c.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) { // nominations, and why there was none
		patch := action.(clienttesting.PatchAction)
		return true, change(patch.GetName(), func(pod *v1.Pod) {
			node := pod.Status.NominatedNodeName
			if err := json.Unmarshal(patch.GetPatch(), pod); err != nil {
				b.Error(err)
			}
			if pod.Status.NominatedNodeName != node {
				nominations++
			}
		}), nil
	})
	c.runWithExtender(b, config)
	before := processorTime(b)
	b.ResetTimer()
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		changing.Lock()
		pod := pods[name]
		changing.Unlock()
		select {
		case waiting <- struct{}{}:
			send(watch.Added, pod)
		case <-time.After(time.Minute):
			b.Fatal("no pod is bound any more")
		}
	}
	for range atOnce { // until all are bound
		waiting <- struct{}{}
	}
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/pod")
	b.ReportMetric(float64(nominations)/float64(b.N), "nominations/pod")
}

// processorTime is of this process.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
