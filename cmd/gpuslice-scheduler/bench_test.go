package main

import (
	"fmt"
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

// BenchmarkPods schedules and binds pods with all of kube-scheduler, with GPUs and without, on 1,000 nodes of 8 GPUs: the processor
// time of a pod in the scheduler. The API server costs next to nothing: it answers a Binding with an event.
func BenchmarkPods(b *testing.B) {
	for _, gpus := range []bool{false, true} {
		b.Run(fmt.Sprintf("gpus=%t", gpus), func(b *testing.B) {
			pods := make(map[string]*v1.Pod, b.N)
			for i := range b.N {
				pod := gpuPod(fmt.Sprintf("p%06d", i), 0, 8000, 10)
				list := v1.ResourceList{"cpu": resource.MustParse("100m")}
				if gpus {
					list = pod.Spec.Containers[0].Resources.Limits
					list["cpu"] = resource.MustParse("100m")
				}
				pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: list, Requests: list}
				pods[pod.Name] = pod
			}
			const atOnce = 50
			waiting, events := make(chan struct{}, atOnce), watch.NewFakeWithChanSize(2*atOnce, false)
			c := &cluster{Clientset: fake.NewClientset(nodes(1000, 8, nil)...)}
			c.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) { return true, events, nil })
			c.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				binding := action.(clienttesting.CreateAction).GetObject().(*v1.Binding)
				pod := pods[binding.Name].DeepCopy()
				pod.Spec.NodeName, pod.Annotations = binding.Target.Name, binding.Annotations
				events.Modify(pod)
				<-waiting
				return true, binding, nil
			})
			c.run(b)
			before := processorTime(b)
			b.ResetTimer()
			for _, pod := range pods {
				select {
				case waiting <- struct{}{}:
					events.Add(pod)
				case <-time.After(time.Minute):
					b.Fatal("no pod is bound any more")
				}
			}
			for range atOnce { // until all are bound
				waiting <- struct{}{}
			}
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/pod")
		})
	}
}

// processorTime is of this process.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
