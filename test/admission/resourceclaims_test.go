package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"github.com/gpuslice/gpuslice/test/testcases"
)

// A pod that is root of its node gets no share by a ResourceClaim.
func TestRootOfTheNodeWithResourceClaims(t *testing.T) {
	s := newServer(t, nil, "resourceclaims.yaml")
	yes := true
	privileged := &corev1.SecurityContext{Privileged: &yes}
	adds := func(name corev1.Capability) *corev1.SecurityContext {
		return &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{name}}}
	}
	claims := corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}
	create := func(namespace string, change func(*corev1.PodSpec)) write {
		p := &corev1.Pod{Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: "main", Resources: claims}, {Name: "other"}},
			InitContainers: []corev1.Container{{Name: "setup", Resources: claims}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu"}},
		}}
		change(&p.Spec)
		return write{as: testcases.Admin, namespace: namespace, resource: "pods", operation: admission.Create, object: p}
	}
	inForce(t, s, create("", func(p *corev1.PodSpec) { p.HostPID = true }))
	for name, tc := range map[string]struct {
		change func(*corev1.PodSpec)
		denied string
	}{
		"nothing":                  {func(*corev1.PodSpec) {}, ""},
		"other capabilities":       {func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = adds("NET_ADMIN") }, ""},
		"a container without them": {func(p *corev1.PodSpec) { p.Containers[1].SecurityContext = privileged }, ""},
		"no ResourceClaim": {func(p *corev1.PodSpec) {
			p.ResourceClaims, p.InitContainers, p.Containers[0].Resources.Claims = nil, nil, nil
			p.HostPID, p.Containers[0].SecurityContext = true, privileged
		}, ""},
		"privileged":        {func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = privileged }, "container main has a ResourceClaim"},
		"CAP_SYS_ADMIN":     {func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = adds("sys_admin") }, "container main"},
		"every capability":  {func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = adds("ALL") }, "container main"},
		"an init container": {func(p *corev1.PodSpec) { p.InitContainers[0].SecurityContext = adds("SYS_ADMIN") }, "container setup"},
		"hostPID":           {func(p *corev1.PodSpec) { p.HostPID = true }, "hostPID"},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, s.admit(create(metav1.NamespaceSystem, tc.change), s.policy), "an exempt namespace")
			err := s.admit(create("", tc.change), s.policy)
			if tc.denied == "" {
				require.NoError(t, err)
				return
			}
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, tc.denied)
		})
	}
}
