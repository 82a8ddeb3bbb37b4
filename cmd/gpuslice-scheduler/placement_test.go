package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// where is the node of each pod, once all are placed.
func (c *cluster) where(pods []*v1.Pod) map[string]string {
	c.t.Helper()
	on := map[string]string{}
	for _, pod := range pods {
		c.until(pod.Name+" is placed", func() bool { return c.bound(pod.Name) })
		on[pod.Name] = c.pod(pod.Name).Spec.NodeName
	}
	return on
}

// counts are the pods of each node.
func counts(on map[string]string) map[string]int {
	n := map[string]int{}
	for _, node := range on {
		n[node]++
	}
	return n
}

func tenths(n int, change func(*v1.Pod)) (pods []*v1.Pod) {
	for i := range n {
		pod := gpuPod(fmt.Sprintf("p%02d", i), 0, 8000, 10)
		if change != nil {
			change(pod)
		}
		pods = append(pods, pod)
	}
	return pods
}

// TestBinpackFillsNodes is of more nodes than kube-scheduler would look at: it takes the names of PreFilter in random
// order, and stops when it has some that fit.
func TestBinpackFillsNodes(t *testing.T) {
	for range 2 { // equal states, equal places
		c := start(t, nodes(300, 1, nil)...)
		pods := tenths(30, nil)
		c.create(pods...)
		require.Equal(t, map[string]int{"n000": 10, "n001": 10, "n002": 10}, counts(c.where(pods)))
	}
}

// TestSecondTry: NodePorts refuses all nodes that are best by GPUs. The pod is placed on another one, and evicts none.
func TestSecondTry(t *testing.T) {
	c := start(t, nodes(60, 1, nil)...)
	port := func(pod *v1.Pod) {
		pod.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 80, ContainerPort: 80}}
	}
	others := tenths(40, port) // one on each
	c.create(others...)
	require.Len(t, counts(c.where(others)), 40)
	for i := range 20 {
		pod := gpuPod(fmt.Sprintf("full%d", i), 0, 80000, 100)
		pod.Spec.NodeName, pod.Spec.NodeSelector = "", map[string]string{v1.LabelHostname: fmt.Sprintf("n%03d", 40+i)}
		if i > 0 {
			c.create(pod)
			c.until(pod.Name, func() bool { return c.bound(pod.Name) })
		}
	}
	pod := gpuPod("last", 100, 8000, 10)
	port(pod)
	c.create(pod)
	require.Equal(t, "n040", c.where([]*v1.Pod{pod})["last"])
	for _, other := range others {
		require.NotNil(t, c.pod(other.Name), "it is not evicted")
	}

	// Where all nodes were tried, pods are evicted as ever.
	pod = gpuPod("evicts", 100, 8000, 10)
	port(pod)
	c.create(pod)
	c.until("evicts is placed", func() bool { return c.bound("evicts") })
}

// TestRequiredAffinity is of a pod for a node that is the worst by GPUs.
func TestRequiredAffinity(t *testing.T) {
	c := start(t, nodes(300, 1, nil)...)
	others := tenths(5, nil)
	c.create(others...)
	c.where(others)
	pod := gpuPod("p", 0, 8000, 10)
	pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{"n299"}}}}}}}}
	c.create(pod)
	require.Equal(t, "n299", c.where([]*v1.Pod{pod})["p"])
	for _, condition := range c.pod("p").Status.Conditions {
		require.NotEqual(t, v1.ConditionFalse, condition.Status, "it is placed at the first try: %s", condition.Message)
	}
}

// TestPreferences: a pod has its part of n000's GPU, so that by GPUs n000 is the best node for the next one. What the
// next one prefers, or a node has, goes before that, with few nodes and with many.
func TestPreferences(t *testing.T) {
	app := map[string]string{"app": "a"}
	last := func(n int) string { return fmt.Sprintf("n%03d", n-1) }
	for _, tc := range []struct {
		name   string
		node   func(first, last bool, node *v1.Node)
		pod    func(*v1.Pod)
		spread bool // any but the first
	}{
		{"preferred node affinity", func(_, last bool, node *v1.Node) { node.Labels["last"] = fmt.Sprint(last) }, func(pod *v1.Pod) {
			pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{
				{Weight: 30, Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "last", Operator: v1.NodeSelectorOpIn, Values: []string{"true"}}}}}}}}
		}, false},
		{"PreferNoSchedule", func(_, last bool, node *v1.Node) {
			if !last {
				node.Spec.Taints = []v1.Taint{{Key: "k", Value: "v", Effect: v1.TaintEffectPreferNoSchedule}}
			}
		}, nil, false},
		{"image locality", func(_, last bool, node *v1.Node) {
			if last {
				node.Status.Images = []v1.ContainerImage{{Names: []string{"example.com/large:latest"}, SizeBytes: 500 << 30}}
			}
		}, func(pod *v1.Pod) { pod.Spec.Containers[0].Image = "example.com/large" }, false},
		{"soft spreading", nil, func(pod *v1.Pod) {
			pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: v1.LabelHostname,
				WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: app}}}
		}, true},
		{"preferred pod anti-affinity", nil, func(pod *v1.Pod) {
			pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{
				{Weight: 100, PodAffinityTerm: v1.PodAffinityTerm{TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: app}}}}}}
		}, true},
	} {
		for _, n := range []int{4, 200} {
			t.Run(fmt.Sprintf("%s/nodes=%d", tc.name, n), func(t *testing.T) {
				c := start(t, nodes(n, 1, func(i int, node *v1.Node) {
					if tc.node != nil {
						tc.node(i == 0, i == n-1, node)
					}
				})...)
				first := gpuPod("first", 0, 8000, 10)
				first.Labels, first.Spec.NodeSelector = app, map[string]string{v1.LabelHostname: "n000"}
				c.create(first)
				require.Equal(t, "n000", c.where([]*v1.Pod{first})["first"])
				plain := gpuPod("plain", 0, 1, 1)
				plain.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
				c.create(plain)
				require.Equal(t, "n000", c.where([]*v1.Pod{plain})["plain"], "only by GPUs")
				pods := tenths(3, func(pod *v1.Pod) {
					pod.Labels = app
					if tc.pod != nil {
						tc.pod(pod)
					}
				})
				if !tc.spread {
					pods = pods[:1]
				}
				c.create(pods...)
				on := c.where(pods)
				if !tc.spread {
					require.Equal(t, last(n), on["p00"])
					return
				}
				nodes := counts(on)
				require.Len(t, nodes, 3, "one on each: %v", nodes)
				require.NotContains(t, nodes, "n000")
			})
		}
	}
}

// TestOneWrite: the scheduler reads nothing of a pod that it is not sent anyway, and writes the Binding, with the grant.
func TestOneWrite(t *testing.T) {
	c := start(t, nodes(60, 1, nil)...)
	pods := tenths(50, nil)
	c.create(pods...)
	resource := v1.SchemeGroupVersion.WithResource("pods")
	for _, pod := range pods {
		c.until(pod.Name+" is placed", func() bool { // not by the client, which counts
			object, err := c.Tracker().Get(resource, pod.Namespace, pod.Name)
			placed, is := object.(*v1.Pod)
			return err == nil && is && placed.Spec.NodeName != ""
		})
	}
	calls := map[string]int{}
	for _, action := range c.Actions() {
		if verb := action.GetVerb(); verb != "list" && verb != "watch" {
			calls[verb+" "+action.GetResource().Resource+"/"+action.GetSubresource()]++
		}
	}
	require.Equal(t, map[string]int{"create pods/": len(pods), "create pods/binding": len(pods)}, calls, "the first are the test's")
}
