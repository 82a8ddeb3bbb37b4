package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"github.com/gpuslice/gpuslice/api"
)

// TestWritersOfNodes: the agent describes its own Node's GPUs, and the discovery sets one label of its own Node.
func TestWritersOfNodes(t *testing.T) {
	const agent, discovery = "system:serviceaccount:kube-system:gpuslice-agent", "system:serviceaccount:kube-system:gpuslice-discovery"
	s := newServer(t, nil, "agents.yaml")
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "n1", Labels: map[string]string{"zone": "a", api.LabelHasGPU: "true"}, Annotations: map[string]string{api.AnnotationNodeGPUs: "{}"},
		}}
		change(n)
		return n
	}
	nothing := func(*corev1.Node) {}
	label := func(key, value string) func(*corev1.Node) { return func(n *corev1.Node) { n.Labels[key] = value } }
	noLabel := func(key string) func(*corev1.Node) { return func(n *corev1.Node) { delete(n.Labels, key) } }
	annotation := func(key, value string) func(*corev1.Node) { return func(n *corev1.Node) { n.Annotations[key] = value } }
	taint := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute}} }
	at := func(who, on string, before, after func(*corev1.Node)) write {
		return write{as: who, node: on, resource: "nodes", operation: admission.Update, old: node(before), object: node(after)}
	}
	inForce(t, s, at(agent, "n1", nothing, taint))
	for name, tc := range map[string]struct {
		write  write
		denied string
	}{
		"discovery: sets the label":            {at(discovery, "n1", noLabel(api.LabelHasGPU), nothing), ""},
		"discovery: removes the label":         {at(discovery, "n1", nothing, noLabel(api.LabelHasGPU)), ""},
		"discovery: of another node":           {at(discovery, "n2", noLabel(api.LabelHasGPU), nothing), "not to n1"},
		"discovery: outside of a pod":          {at(discovery, "", noLabel(api.LabelHasGPU), nothing), "only from a pod of the node"},
		"discovery: another label":             {at(discovery, "n1", nothing, label("zone", "b")), "only the label gpuslice.io/has-gpu"},
		"discovery: removes another label":     {at(discovery, "n1", nothing, noLabel("zone")), "only the label gpuslice.io/has-gpu"},
		"discovery: an agent's label":          {at(discovery, "n1", nothing, label(api.LabelPrefix+"count", "8")), "only the label gpuslice.io/has-gpu"},
		"discovery: an agent's annotation":     {at(discovery, "n1", nothing, annotation(api.AnnotationNodeGPUs, "x")), "only the label gpuslice.io/has-gpu"},
		"discovery: a taint":                   {at(discovery, "n1", nothing, taint), "no Node's spec"},
		"agent: its annotation":                {at(agent, "n1", nothing, annotation(api.AnnotationNodeGPUs, "x")), ""},
		"agent: its label":                     {at(agent, "n1", nothing, label(api.LabelPrefix+"count", "8")), ""},
		"agent: of another node":               {at(agent, "n2", nothing, annotation(api.AnnotationNodeGPUs, "x")), "not to n1"},
		"agent: the discovery's label":         {at(agent, "n1", nothing, noLabel(api.LabelHasGPU)), "no label but"},
		"agent: a label that selects agents":   {at(agent, "n1", nothing, label("nvidia.com/gpu.present", "true")), "no label but"},
		"agent: NVIDIA's label":                {at(agent, "n1", nothing, label("nvidia.com/gpu.product", "NVIDIA-H200")), ""},
		"agent: another of NVIDIA's labels":    {at(agent, "n1", nothing, label("nvidia.com/gpu.deploy.driver", "false")), "no label but"},
		"another service account of that name": {at("system:serviceaccount:team-a:gpuslice-discovery", "n2", nothing, label("zone", "b")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.admit(tc.write, s.policy)
			if tc.denied == "" {
				require.NoError(t, err)
				return
			}
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, tc.denied)
		})
	}
}
