package admission

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/gpuslice/gpuslice/api"
)

const agent = "system:serviceaccount:kube-system:gpuslice-agent"

// TestAgentsWriteOfTheirGPUsAlone: an agent on a node that an attacker controls changes no other Node, and of
// its own Node only the annotations and labels of its GPUs.
func TestAgentsWriteOfTheirGPUsAlone(t *testing.T) {
	s := newServer(t, nil, "agents.yaml")
	write := func(as, on, node string, change func(*corev1.Node)) error {
		before := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"kubeadm": "x", api.AnnotationNodeGPUs: "old"}},
		}
		after := before.DeepCopy()
		change(after)
		who := &user.DefaultInfo{Name: as, Groups: []string{"system:authenticated"}}
		if on != "" {
			who.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {on}}
		}
		return s.policy.Validate(context.Background(), admission.NewAttributesRecord(after, before, corev1.SchemeGroupVersion.WithKind("Node"), "", node,
			corev1.SchemeGroupVersion.WithResource("nodes"), "", admission.Update, nil, false, who), admission.NewObjectInterfacesFromScheme(scheme.Scheme))
	}
	gpus := func(n *corev1.Node) {
		n.Annotations[api.AnnotationNodeGPUs] = "new"
		n.Annotations[api.AnnotationHAMiRegister] = "new"
		n.Annotations[api.AnnotationHAMiScore] = "new"
		n.Annotations[api.AnnotationHAMiHandshake] = "new"
		n.Labels[api.LabelPrefix+"count"] = "8"
		n.Labels[api.LabelTencentModel] = "H200"
	}
	forget := func(n *corev1.Node) { delete(n.Annotations, api.AnnotationNodeGPUs) }
	taint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "away", Effect: corev1.TaintEffectNoExecute}}
	}
	cordon := func(n *corev1.Node) { n.Annotations["hami.io/device-cordon"] = "GPU-1" }
	label := func(n *corev1.Node) { n.Labels["zone"] = "b" }
	unlabel := func(n *corev1.Node) { delete(n.Labels, "zone") }
	eventually(t, "the policy is in force", func() error {
		if write(agent, "node-1", "node-1", taint) == nil {
			return errors.New("an agent may taint a node")
		}
		return nil
	})
	for name, tc := range map[string]struct {
		as, on, node string
		change       func(*corev1.Node)
		refused      string
	}{
		"its own GPUs":                  {agent, "node-1", "node-1", gpus, ""},
		"its own GPUs, no more":         {agent, "node-1", "node-1", forget, ""},
		"another's GPUs":                {agent, "node-1", "node-2", gpus, "the agent of node node-1 writes only to that Node, not to node-2"},
		"its own taints":                {agent, "node-1", "node-1", taint, "no Node's spec"},
		"another's annotation":          {agent, "node-1", "node-1", cordon, "no annotation but"},
		"another's label":               {agent, "node-1", "node-1", label, "no label but"},
		"another's label, gone":         {agent, "node-1", "node-1", unlabel, "no label but"},
		"an agent outside of pods":      {agent, "", "node-1", gpus, ""},
		"which taints no node either":   {agent, "", "node-1", taint, "no Node's spec"},
		"an administrator":              {"admin", "", "node-1", taint, ""},
		"an account of a like name":     {agent + "s", "node-1", "node-2", label, ""},
		"the same in another namespace": {"system:serviceaccount:team-a:gpuslice-agent", "node-1", "node-2", label, ""},
	} {
		err := write(tc.as, tc.on, tc.node, tc.change)
		if tc.refused == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, tc.refused, name)
		}
	}
}
