package admission

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

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
