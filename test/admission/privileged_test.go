package admission

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/testcases"
)

// Pods that can open every GPU of their node are refused if the operator wants that, except in exempt namespaces.
func TestPodsThatAreRootOfTheirNode(t *testing.T) {
	denies := func(o *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
		require.Equal(t, []admissionregistrationv1.ValidationAction{"Warn", "Audit"}, o.Spec.ValidationActions, "by default no CNI is refused")
		o.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	}
	s := newServerWith(t, nil, denies, "privileged.yaml")
	yes := true
	container := func(name string, security *corev1.SecurityContext) corev1.Container {
		return corev1.Container{Name: name, SecurityContext: security}
	}
	adds := func(names ...corev1.Capability) *corev1.SecurityContext {
		return &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: names}}
	}
	pod := func(change func(*corev1.PodSpec)) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container("main", nil)}}}
		change(&p.Spec)
		return p
	}
	try := func(namespace string, p *corev1.Pod) error {
		return s.admit(write{as: testcases.Admin, namespace: namespace, resource: "pods", operation: admission.Create, object: p}, s.policy)
	}
	root := pod(func(spec *corev1.PodSpec) { spec.Containers[0].SecurityContext = adds("SYS_ADMIN") })
	eventually(t, "the policy is in force", func() error {
		if try("", root) == nil {
			return errors.New("CAP_SYS_ADMIN is admitted")
		}
		return nil
	})
	for _, test := range []struct {
		name   string
		change func(*corev1.PodSpec)
		says   string
	}{
		{"nothing", func(*corev1.PodSpec) {}, ""},
		{"other capabilities", func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = adds("NET_ADMIN", "SYS_PTRACE") }, ""},
		{"all dropped", func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
		}, ""},
		{"CAP_SYS_ADMIN", func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = adds("NET_ADMIN", "SYS_ADMIN") }, "container main"},
		{"in small letters", func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = adds("sys_admin") }, "container main"},
		{"with its prefix", func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = adds("CAP_SYS_ADMIN") }, "container main"},
		{"every capability", func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = adds("ALL") }, "container main"},
		{"privileged", func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes} }, "container main"},
		{"an init container", func(p *corev1.PodSpec) { p.InitContainers = []corev1.Container{container("setup", adds("SYS_ADMIN"))} }, "container setup"},
		{"hostPID", func(p *corev1.PodSpec) { p.HostPID = true }, "hostPID"},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.NoError(t, try(metav1.NamespaceSystem, pod(test.change)), "an exempt namespace")
			if err := try("", pod(test.change)); test.says != "" {
				require.ErrorContains(t, err, test.says)
			} else {
				require.NoError(t, err)
			}
		})
	}

	debug := func(security *corev1.SecurityContext) corev1.EphemeralContainer {
		return corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", SecurityContext: security}}
	}
	update := func(subresource string, old, p *corev1.Pod) error {
		return s.admit(write{as: testcases.Admin, resource: "pods", subresource: subresource, operation: admission.Update, object: p, old: old}, s.policy)
	}
	plain := pod(func(*corev1.PodSpec) {})
	debugged := pod(func(p *corev1.PodSpec) { p.EphemeralContainers = []corev1.EphemeralContainer{debug(adds("SYS_ADMIN"))} })
	require.ErrorContains(t, update("ephemeralcontainers", plain, debugged), "container debug")
	require.NoError(t, update("ephemeralcontainers", plain, pod(func(p *corev1.PodSpec) { p.EphemeralContainers = []corev1.EphemeralContainer{debug(nil)} })))
	require.NoError(t, update("ephemeralcontainers", debugged, debugged), "an existing container")
	require.NoError(t, update("", root, root), "an existing pod can be labelled")
}

const agent = "system:serviceaccount:kube-system:gpuslice-agent"

// TestAgentsWriteOfTheirGPUsAlone: an agent on a node that an attacker controls changes no other Node, and of
// its own Node only the annotations and labels of its GPUs.
func TestAgentsWriteOfTheirGPUsAlone(t *testing.T) {
	s := newServer(t, nil, "agents.yaml")
	writeTo := func(subresource, as, on, node string, change func(*corev1.Node)) error {
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
			corev1.SchemeGroupVersion.WithResource("nodes"), subresource, admission.Update, nil, false, who), admission.NewObjectInterfacesFromScheme(scheme.Scheme))
	}
	write := func(as, on, node string, change func(*corev1.Node)) error { return writeTo("", as, on, node, change) }
	gpus := func(n *corev1.Node) {
		n.Annotations[api.AnnotationNodeGPUs] = "new"
		n.Annotations[api.AnnotationHAMiRegister] = "new"
		n.Annotations[api.AnnotationHAMiScore] = "new"
		n.Annotations[api.AnnotationHAMiHandshake] = "new"
		n.Annotations[api.AnnotationHAMiLock] = "new"
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
	verified := corev1.NodeCondition{Type: "GPUShareIsolationVerified", Status: corev1.ConditionTrue, Reason: "Verified"}
	require.NoError(t, writeTo("status", agent, "node-1", "node-1", func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, verified)
	}), "a condition of --node-condition")
	require.NoError(t, writeTo("status", agent, "node-1", "node-1", func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, verified, corev1.NodeCondition{Type: "GPUMemoryLimitedByDriver", Status: corev1.ConditionFalse})
	}), "both")
	require.ErrorContains(t, writeTo("status", agent, "node-1", "node-1", func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, verified, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})
	}), "nothing of a Node's status but", "another one beside it")
	require.ErrorContains(t, writeTo("status", agent, "node-1", "node-2", func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, verified)
	}), "writes only to that Node", "another node's")
	// Without --node-capacity and --node-condition it has no right to the status; with the right it could fake another node's health.
	for name, change := range map[string]func(*corev1.Node){
		"a capacity": func(n *corev1.Node) {
			n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpumem": resource.MustParse("1")}
		},
		"what is allocatable": func(n *corev1.Node) { n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("1000")} },
		"a condition": func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		},
		"an address": func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
		},
		"the phase":    func(n *corev1.Node) { n.Status.Phase = corev1.NodePending },
		"the port":     func(n *corev1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 1 },
		"the versions": func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = "v1.0.0" },
		"an image": func(n *corev1.Node) {
			n.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}, SizeBytes: 1 << 40}}
		},
		"a volume in use": func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"} },
		"a volume":        func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}} },
		"the config":      func(n *corev1.Node) { n.Status.Config = &corev1.NodeConfigStatus{Error: "x"} },
		"a handler":       func(n *corev1.Node) { n.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: "h"}} },
		"the features":    func(n *corev1.Node) { n.Status.Features = &corev1.NodeFeatures{} },
		"a feature":       func(n *corev1.Node) { n.Status.DeclaredFeatures = []string{"f"} },
	} {
		require.ErrorContains(t, writeTo("status", agent, "node-1", "node-1", change), "nothing of a Node's status but", name)
		require.NoError(t, writeTo("status", "system:node:node-1", "", "node-1", change), "the kubelet: %s", name)
	}
}
