package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/plugin"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// shipped is the configuration that clusters are given.
const shipped = "../../install/scheduler/config.yaml"

// cluster is a kube-scheduler, all of it, on an API server that is a map.
type cluster struct {
	*fake.Clientset
	t *testing.T
	// stop ends kube-scheduler.
	stop func()
}

func start(t *testing.T, objects ...runtime.Object) *cluster {
	t.Helper()
	return startWith(t, configuration(t, shipped), objects...)
}

func startWith(t *testing.T, config *config.KubeSchedulerConfiguration, objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{Clientset: fake.NewClientset(objects...), t: t}
	c.PrependReactor("create", "pods", c.bind)
	c.PrependReactor("delete", "pods", c.terminate)
	c.PrependReactor("update", "resourceclaims", c.newVersion())
	c.stop = c.run(t, config)
	return c
}

func configuration(t testing.TB, file string) *config.KubeSchedulerConfiguration {
	t.Helper()
	c, err := options.LoadConfigFromFile(klog.Background(), file)
	require.NoError(t, err)
	return c
}

// run starts kube-scheduler, until stop is called or the test ends.
func (c *cluster) run(t testing.TB, config *config.KubeSchedulerConfiguration) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	factory := &plugin.Factory{Log: slog.New(slog.DiscardHandler)}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: c.EventsV1()})
	informers := scheduler.NewInformerFactory(c, 0)
	s, err := scheduler.New(ctx, c, informers, nil, profile.NewRecorderFactory(broadcaster),
		scheduler.WithProfiles(config.Profiles...), scheduler.WithPercentageOfNodesToScore(config.PercentageOfNodesToScore),
		scheduler.WithExtenders(config.Extenders...), scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{plugin.Name: factory.New}),
		scheduler.WithPodInitialBackoffSeconds(config.PodInitialBackoffSeconds), scheduler.WithPodMaxBackoffSeconds(config.PodMaxBackoffSeconds))
	require.NoError(t, err)
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	require.NoError(t, s.WaitForHandlersSync(ctx))
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		factory.Wait()
		broadcaster.Shutdown()
		informers.Shutdown()
	})
	t.Cleanup(stop)
	return stop
}

// bind does what the API server does with a Binding.
func (c *cluster) bind(action clienttesting.Action) (bool, runtime.Object, error) {
	create := action.(clienttesting.CreateAction)
	binding, ok := create.GetObject().(*v1.Binding)
	if !ok {
		return false, nil, nil
	}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	object, err := c.Tracker().Get(pods, binding.Namespace, binding.Name)
	if err != nil {
		return true, nil, err
	}
	pod := object.(*v1.Pod).DeepCopy()
	if pod.UID != binding.UID || pod.Spec.NodeName != "" {
		return true, nil, apierrors.NewConflict(pods.GroupResource(), pod.Name, fmt.Errorf("it is on node %q", pod.Spec.NodeName))
	}
	pod.Spec.NodeName = binding.Target.Name
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	for k, v := range binding.Annotations {
		pod.Annotations[k] = v
	}
	return true, binding, c.Tracker().Update(pods, pod, pod.Namespace)
}

// terminationTime is how long a pod's containers take to end.
const terminationTime = 50 * time.Millisecond

// terminate does what the API server does with the deletion of a pod that runs, and what the
// kubelet does then. Where victims vanish at once, kube-scheduler's preemption can evict
// one twice, and then waits for an event that has been.
func (c *cluster) terminate(action clienttesting.Action) (bool, runtime.Object, error) {
	deletion := action.(clienttesting.DeleteAction)
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	object, err := c.Tracker().Get(pods, deletion.GetNamespace(), deletion.GetName())
	if err != nil {
		return true, nil, err
	}
	pod := object.(*v1.Pod).DeepCopy()
	if pod.Spec.NodeName == "" {
		return false, nil, nil
	}
	if pod.DeletionTimestamp != nil {
		return true, nil, nil
	}
	now := metav1.Now()
	pod.DeletionTimestamp = &now
	err = c.Tracker().Update(pods, pod, pod.Namespace)
	time.AfterFunc(terminationTime, func() { _ = c.Tracker().Delete(pods, pod.Namespace, pod.Name) })
	return true, nil, err
}

func (c *cluster) create(pods ...*v1.Pod) {
	c.t.Helper()
	for _, pod := range pods {
		_, err := c.CoreV1().Pods(pod.Namespace).Create(c.t.Context(), pod, metav1.CreateOptions{})
		require.NoError(c.t, err)
	}
}

func (c *cluster) delete(pod string) {
	c.t.Helper()
	require.NoError(c.t, c.CoreV1().Pods("ns").Delete(c.t.Context(), pod, metav1.DeleteOptions{}))
}

// pod is nil where there is none.
func (c *cluster) pod(name string) *v1.Pod {
	c.t.Helper()
	pod, err := c.CoreV1().Pods("ns").Get(c.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(c.t, err)
	return pod
}

// until waits for something to be so.
func (c *cluster) until(what string, is func() bool) {
	c.t.Helper()
	require.Eventually(c.t, is, time.Minute, 5*time.Millisecond, what)
}

func (c *cluster) bound(name string) bool {
	pod := c.pod(name)
	return pod != nil && pod.Spec.NodeName != ""
}

// refused is why the pod was not placed, once it was tried.
func (c *cluster) rejected(name string) (why string) {
	c.t.Helper()
	c.until(name+" is refused", func() bool {
		pod := c.pod(name)
		if pod == nil {
			return false
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse {
				why = condition.Message
			}
		}
		return why != ""
	})
	return why
}

// taken is what pods hold of each GPU, in MiB, and that none of it was given twice.
func (c *cluster) taken() map[string][]int64 {
	c.t.Helper()
	pods, err := c.CoreV1().Pods("ns").List(c.t.Context(), metav1.ListOptions{})
	require.NoError(c.t, err)
	all := map[string][]int64{}
	for i := range pods.Items {
		placement, err := wire.DecodePod(convert.Pod(&pods.Items[i]), nil)
		require.NoError(c.t, err)
		if placement == nil {
			continue
		}
		for _, shares := range placement.Containers {
			for _, s := range shares {
				all[s.UUID] = append(all[s.UUID], s.MemoryMiB)
			}
		}
	}
	return all
}

// node has GPUs (there is one such node in a test) of 80000 MiB, and offers 10 replicas of each to the kubelet.
func node(name string, gpus int) *v1.Node { return nodeFrom(name, 0, gpus) }

// nodes are so many, n000 and so on.
func nodes(n, gpus int, change func(i int, node *v1.Node)) (all []runtime.Object) {
	for i := range n {
		node := nodeFrom(fmt.Sprintf("n%03d", i), i*gpus, gpus)
		node.Labels = map[string]string{v1.LabelHostname: node.Name}
		if change != nil {
			change(i, node)
		}
		all = append(all, node)
	}
	return all
}

// nodeFrom has GPUs from that number on.
func nodeFrom(name string, first, gpus int) *v1.Node {
	list := []map[string]any{}
	for i := first; i < first+gpus; i++ {
		list = append(list, map[string]any{"uuid": fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i), "model": "NVIDIA H100 80GB HBM3", "index": i - first, "memoryMiB": 80000,
			"cores": 100, "replicas": 10, "mode": "hami-core", "healthy": true})
	}
	text, err := json.Marshal(map[string]any{"version": 1, "gpus": list})
	if err != nil {
		panic(err)
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.AnnotationNodeGPUs: string(text)}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			"cpu": resource.MustParse("64"), "memory": resource.MustParse("512Gi"), "pods": resource.MustParse("500"),
			"nvidia.com/gpu": *resource.NewQuantity(int64(gpus)*10, resource.DecimalSI),
		}},
	}
}

// gpuPod requests a GPU with memory and cores; 0: no such request.
func gpuPod(name string, priority int32, memoryMiB, cores int64) *v1.Pod {
	limits := v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	if memoryMiB > 0 {
		limits["nvidia.com/gpumem"] = *resource.NewQuantity(memoryMiB, resource.DecimalSI)
	}
	if cores > 0 {
		limits["nvidia.com/gpucores"] = *resource.NewQuantity(cores, resource.DecimalSI)
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Now()},
		Spec: v1.PodSpec{
			SchedulerName: "gpuslice-scheduler", Priority: &priority,
			Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Limits: limits, Requests: limits}}},
		},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
}
