package karpenter

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	client "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	labels "sigs.k8s.io/karpenter/pkg/scheduling"
	karpenter "sigs.k8s.io/karpenter/pkg/test"
)

// Instance types with 8 GPUs and with 1.
const (
	large = "p5.48xlarge"
	small = "p5.4xlarge"
)

// overlays are the page's NodeOverlay, of the large instance type, and the same for the small one with an eighth.
func overlays(t *testing.T) []*v1alpha1.NodeOverlay {
	t.Helper()
	page, err := os.ReadFile("../../docs/AUTOSCALING.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(page), "## Karpenter\n")
	require.True(t, found)
	parts := strings.Split(text, "```")
	require.Len(t, parts, 3)
	var first v1alpha1.NodeOverlay
	require.NoError(t, yaml.UnmarshalStrict([]byte(strings.TrimPrefix(parts[1], "yaml\n")), &first))
	require.Equal(t, []string{large}, first.Spec.Requirements[0].Values)
	second := first.DeepCopy()
	second.Name, second.Spec.Requirements[0].Values = "small", []string{small}
	for name, amount := range second.Spec.Capacity {
		second.Spec.Capacity[name] = *resource.NewQuantity(amount.Value()/8, resource.DecimalSI)
	}
	return []*v1alpha1.NodeOverlay{&first, second}
}

// pod requests of one container: GPUs, MiB and cores of each.
func pod(number int, gpus, memoryMiB, cores int64) *corev1.Pod {
	limits := corev1.ResourceList{}
	for name, n := range map[corev1.ResourceName]int64{"nvidia.com/gpu": gpus, "nvidia.com/gpumem": memoryMiB, "nvidia.com/gpucores": cores} {
		if n > 0 {
			limits[name] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	return karpenter.Pod(karpenter.PodOptions{
		ObjectMeta:           metav1.ObjectMeta{Name: fmt.Sprint("pod-", number), UID: types.UID(fmt.Sprint(number))},
		ResourceRequirements: corev1.ResourceRequirements{Limits: limits, Requests: limits},
	})
}

// simulate returns the possible instance types of each new node, the cheapest first, and the number of pods without a node.
func simulate(t *testing.T, overlays []*v1alpha1.NodeOverlay, pods ...*corev1.Pod) (nodes [][]string, without int) {
	t.Helper()
	ctx := options.ToContext(context.Background(), karpenter.Options())
	pool := karpenter.NodePool()
	cloud := fake.NewCloudProvider()
	for name, gpus := range map[string]int64{large: 8, small: 1} {
		offering := cloudprovider.Offering{Available: true, Price: float64(gpus), Requirements: labels.NewLabelRequirements(
			map[string]string{v1.CapacityTypeLabelKey: v1.CapacityTypeOnDemand, corev1.LabelTopologyZone: "test-zone-1"})}
		cloud.InstanceTypes = append(cloud.InstanceTypes, fake.NewInstanceType(name, fake.WithOfferings(offering), fake.WithResources(corev1.ResourceList{
			"cpu": resource.MustParse("32"), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110"),
			"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI)})))
	}
	builder := client.NewClientBuilder().WithScheme(scheme.Scheme).WithStatusSubresource(&v1alpha1.NodeOverlay{}).WithObjects(pool)
	for _, o := range overlays {
		builder = builder.WithObjects(o)
	}
	kube := builder.Build()
	cluster := state.NewCluster(clock.RealClock{}, kube, cloud)
	store := nodeoverlay.NewInstanceTypeStore()
	_, err := nodeoverlay.NewController(clock.RealClock{}, kube, cloud, store, cluster).Reconcile(ctx, reconcile.Request{})
	require.NoError(t, err)
	with, err := store.ApplyAll(pool.Name, cloud.InstanceTypes)
	require.NoError(t, err)
	instances, pools := map[string][]*cloudprovider.InstanceType{pool.Name: with}, []*v1.NodePool{pool}
	topology, err := scheduling.NewTopology(ctx, kube, cluster, nil, pools, instances, pods)
	require.NoError(t, err)
	scheduler := scheduling.NewScheduler(ctx, kube, pools, cluster, nil, topology, instances, nil, events.NewRecorder(&record.FakeRecorder{}),
		clock.RealClock{}, nil, nil)
	results, err := scheduler.Solve(ctx, pods)
	require.NoError(t, err)
	for _, node := range results.NewNodeClaims {
		var names []string
		for _, it := range node.InstanceTypeOptions.OrderByPrice(node.Requirements) {
			names = append(names, it.Name)
		}
		nodes = append(nodes, names)
	}
	slices.SortFunc(nodes, slices.Compare)
	return nodes, len(results.PodErrors)
}

// shares are pods with one GPU each.
func shares(n int, memoryMiB, cores int64) (pods []*corev1.Pod) {
	for i := range n {
		pods = append(pods, pod(i, 1, memoryMiB, cores))
	}
	return pods
}

var either, onlyLarge = []string{small, large}, []string{large}

type simulated struct {
	pods    []*corev1.Pod
	nodes   [][]string
	without int
}

func (s *simulated) check(t *testing.T, overlays []*v1alpha1.NodeOverlay) {
	t.Helper()
	nodes, without := simulate(t, overlays, s.pods...)
	require.Equal(t, s.nodes, nodes)
	require.Equal(t, s.without, without)
}

func TestNodesForPods(t *testing.T) {
	for name, tc := range map[string]simulated{
		"a share":                      {shares(1, 8000, 10), [][]string{either}, 0},
		"a whole GPU":                  {shares(1, 81559, 100), [][]string{either}, 0},
		"eight shares: a GPU for each": {shares(8, 8000, 10), [][]string{onlyLarge}, 0},
		"nine shares":                  {shares(9, 8000, 10), [][]string{onlyLarge, either}, 0},
		"two GPUs of a container":      {[]*corev1.Pod{pod(0, 2, 40000, 50)}, [][]string{onlyLarge}, 0},
		"more than the largest node":   {shares(1, 700000, 0), nil, 1},
		"more than a GPU: a sum":       {shares(1, 100000, 0), [][]string{onlyLarge}, 0},
	} {
		t.Run(name, func(t *testing.T) { tc.check(t, overlays(t)) })
	}
}

// With the number of replicas in the NodeOverlays, shares fill nodes, and a container with two GPUs gets a node with one.
func TestNodesWithReplicas(t *testing.T) {
	with := overlays(t)
	with[0].Spec.Capacity["nvidia.com/gpu"], with[1].Spec.Capacity["nvidia.com/gpu"] = resource.MustParse("80"), resource.MustParse("10")
	for name, tc := range map[string]simulated{
		"as much memory as a GPU has":  {shares(10, 8000, 10), [][]string{either}, 0},
		"more memory than a GPU has":   {shares(11, 8000, 0), [][]string{onlyLarge}, 0},
		"more cores than a GPU has":    {shares(3, 1000, 40), [][]string{onlyLarge}, 0},
		"all replicas of a GPU":        {shares(10, 1000, 0), [][]string{either}, 0},
		"one more":                     {shares(11, 1000, 0), [][]string{onlyLarge}, 0},
		"all replicas of a large node": {shares(80, 1000, 0), [][]string{onlyLarge}, 0},
		"more than one node":           {shares(81, 1000, 0), [][]string{onlyLarge, either}, 0},
		"two GPUs of a container":      {[]*corev1.Pod{pod(0, 2, 40000, 50)}, [][]string{either}, 0},
	} {
		t.Run(name, func(t *testing.T) { tc.check(t, with) })
	}
}

// Without the NodeOverlays no node has memory and cores.
func TestNoNodeWithoutOverlays(t *testing.T) {
	for _, tc := range []simulated{{shares(1, 8000, 10), nil, 1}, {shares(1, 0, 0), [][]string{either}, 0}} {
		tc.check(t, nil)
	}
}

// Karpenter replaces a node that never has what its pods request: the agent has to write it.
func TestNodeIsInitialized(t *testing.T) {
	requests := pod(0, 1, 8000, 10).Spec.Containers[0].Resources.Requests
	claim := &v1.NodeClaim{Spec: v1.NodeClaimSpec{Resources: v1.ResourceRequirements{Requests: requests}}}
	node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: requests.DeepCopy()}}
	_, complete := lifecycle.RequestedResourcesRegistered(node, claim)
	require.True(t, complete)
	delete(node.Status.Allocatable, "nvidia.com/gpumem")
	missing, complete := lifecycle.RequestedResourcesRegistered(node, claim)
	require.Equal(t, corev1.ResourceName("nvidia.com/gpumem"), missing)
	require.False(t, complete)
}
