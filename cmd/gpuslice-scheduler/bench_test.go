package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
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

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/extender"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// extended is the configuration of a kube-scheduler that asks our extender.
const extended = "../../install/scheduler/extender-config.yaml"

// BenchmarkPods schedules and binds pods with all of kube-scheduler on 1,000 nodes of 8 GPUs: the processor time of a pod, the
// extender's included. The API server costs next to nothing: it answers a Binding with an event.
func BenchmarkPods(b *testing.B) {
	for _, kind := range []struct {
		name, config string
		gpus         bool
	}{{"no-GPUs", shipped, false}, {"plugin", shipped, true}, {"extender", extended, true}} {
		b.Run(kind.name, func(b *testing.B) { benchPods(b, kind.config, kind.gpus) })
	}
}

func benchPods(b *testing.B, config string, gpus bool) {
	pods := make(map[string]*v1.Pod, b.N)
	for i := range b.N {
		pod := gpuPod(fmt.Sprintf("p%06d", i), 0, 8000, 10)
		list := v1.ResourceList{}
		if gpus {
			list = pod.Spec.Containers[0].Resources.Limits
		}
		list["cpu"] = resource.MustParse("100m")
		pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: list, Requests: list}
		pods[pod.Name] = pod
	}
	const atOnce = 50
	waiting, events := make(chan struct{}, atOnce), watch.NewBroadcaster(2*atOnce, watch.WaitIfChannelFull)
	send := func(kind watch.EventType, pod *v1.Pod) { require.NoError(b, events.Action(kind, pod)) }
	c := &cluster{Clientset: fake.NewClientset(nodes(1000, 8, nil)...)}
	c.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		w, err := events.Watch()
		return true, w, err
	})
	c.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		binding := action.(clienttesting.CreateAction).GetObject().(*v1.Binding)
		pod := pods[binding.Name].DeepCopy()
		pod.Spec.NodeName, pod.Annotations = binding.Target.Name, binding.Annotations
		send(watch.Modified, pod)
		<-waiting
		return true, binding, nil
	})
	settings := configuration(b, config)
	for i := range settings.Extenders {
		settings.Extenders[i].URLPrefix = c.extend(b)
	}
	c.run(b, settings)
	before := processorTime(b)
	b.ResetTimer()
	for _, pod := range pods {
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
}

// extend starts an extender, until the benchmark ends, and returns its URL.
func (c *cluster) extend(b *testing.B) string {
	const address = "127.0.0.1:18182"
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() {
		_ = extender.Run(ctx, extender.Config{Client: c, Listen: address, Log: slog.New(slog.DiscardHandler),
			Engine: engine.Options{Request: request.DefaultOptions()}})
	})
	b.Cleanup(func() { cancel(); running.Wait() })
	require.Eventually(b, func() bool {
		response, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	}, time.Minute, 10*time.Millisecond)
	return "http://" + address
}

// processorTime is of this process.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
