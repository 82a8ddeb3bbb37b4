package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"

	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// emptyGroup is the node that an autoscaler makes of the tags in docs/AUTOSCALING.md: two GPUs of 80 GiB.
func emptyGroup(t *testing.T, resources map[v1.ResourceName]string) *v1.Node {
	page, err := os.ReadFile("../../docs/AUTOSCALING.md")
	require.NoError(t, err)
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "template", Labels: map[string]string{
		"gpuslice.io/gpu.count": "2", "gpuslice.io/gpu.memory": "81920", "gpuslice.io/gpu.model": "NVIDIA-H200", "gpuslice.io/gpu.replicas": "10",
	}}}
	for label := range n.Labels {
		require.Contains(t, string(page), "node-template/label/"+label)
	}
	n.Status.Capacity = v1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110")}
	for name, amount := range resources {
		require.Contains(t, string(page), "/"+string(name)+"`")
		n.Status.Capacity[name] = resource.MustParse(amount)
	}
	n.Status.Allocatable = n.Status.Capacity
	return n
}

// simulate is the check of Cluster Autoscaler's simulation: kube-scheduler's default PreFilter and Filter plugins on a node
// that exists only for them. Extenders are not called.
func simulate(t *testing.T, pod *v1.Pod, n *v1.Node) error {
	ctx := t.Context()
	metrics.Register()
	c, err := latest.Default()
	require.NoError(t, err)
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	claims := assumecache.NewAssumeCache(klog.Background(), factory.Resource().V1().ResourceClaims().Informer(), "ResourceClaim", "", nil)
	snapshot := cache.NewSnapshot(nil, []*v1.Node{n})
	f, err := frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), &c.Profiles[0], frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory), frameworkruntime.WithSnapshotSharedLister(snapshot),
		frameworkruntime.WithSharedDRAManager(dynamicresources.NewDRAManager(ctx, claims, nil, factory)))
	require.NoError(t, err)
	info, err := snapshot.NodeInfos().Get(n.Name)
	require.NoError(t, err)
	state := framework.NewCycleState()
	if _, status, _ := f.RunPreFilterPlugins(ctx, state, pod); !status.IsSuccess() {
		return status.AsError()
	}
	return f.RunFilterPlugins(ctx, state, pod, info).AsError()
}

// fitsByGPUs is the decision of gpuslice's scheduler on a new node with these labels.
func fitsByGPUs(t *testing.T, pod *v1.Pod, n *v1.Node) bool {
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(t, err)
	p := convert.Pod(pod)
	r, err := e.Request(p)
	require.NoError(t, err)
	return e.Template(e.Evaluate(e.Snapshot(), p, r), convert.Node(n)).Fits
}

// TestScaleFromZero: with the tags of docs/AUTOSCALING.md Cluster Autoscaler adds a node for a pod with GPU memory.
func TestScaleFromZero(t *testing.T) {
	tagged := map[v1.ResourceName]string{"nvidia.com/gpu": "20", "nvidia.com/gpumem": "163840", "nvidia.com/gpumem-percentage": "200", "nvidia.com/gpucores": "200"}
	selects := func(model string) *v1.Pod {
		pod := gpuPod("p", 0, 8000, 10)
		pod.Spec.NodeSelector = map[string]string{"gpuslice.io/gpu.model": model}
		return pod
	}
	percent := gpuPod("p", 0, 0, 10)
	percent.Spec.Containers[0].Resources.Limits["nvidia.com/gpumem-percentage"] = resource.MustParse("50")
	for name, tc := range map[string]struct {
		pod             *v1.Pod
		resources       map[v1.ResourceName]string
		simulated, fits bool
		refusal         string
	}{
		"a share":             {gpuPod("p", 0, 8000, 10), tagged, true, true, ""},
		"in percent":          {percent, tagged, true, true, ""},
		"of a model":          {selects("NVIDIA-H200"), tagged, true, true, ""},
		"of another model":    {selects("NVIDIA-A100"), tagged, false, true, "affinity/selector"},
		"more than a node":    {gpuPod("p", 0, 200000, 10), tagged, false, false, "Insufficient nvidia.com/gpumem"},
		"more than a GPU":     {gpuPod("p", 0, 100000, 10), tagged, true, false, ""}, // a sum is no guarantee
		"replicas only":       {gpuPod("p", 0, 8000, 10), map[v1.ResourceName]string{"nvidia.com/gpu": "20"}, false, true, "Insufficient nvidia.com/gpumem"},
		"no tag of resources": {gpuPod("p", 0, 0, 0), nil, false, true, "Insufficient nvidia.com/gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			n := emptyGroup(t, tc.resources)
			err := simulate(t, tc.pod, n)
			if tc.simulated {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.refusal)
			}
			require.Equal(t, tc.fits, fitsByGPUs(t, tc.pod, n))
		})
	}
}
