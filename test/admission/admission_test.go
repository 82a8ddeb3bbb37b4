package admission

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/test/testcases"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"sigs.k8s.io/yaml"
)

// TestPolicyWithoutAWebhook: the API server refuses forged annotations by itself.
func TestPolicyWithoutAWebhook(t *testing.T) {
	s := newServer(t, nil, "policy.yaml")
	forged := annotationWrite(testcases.Annotations{As: testcases.Tenant, Resource: "pods", Operation: "CREATE", After: map[string]string{"gpuslice.io/grant": "x"}})
	inForce(t, s, forged)
	for _, tc := range testcases.AllAnnotations() {
		t.Run(tc.Name, func(t *testing.T) {
			err := s.admit(annotationWrite(tc), s.policy)
			if !tc.Denied {
				require.NoError(t, err)
				return
			}
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, tc.Message, "its own words, not an expression that failed")
		})
	}
}

// TestPolicyKnowsEveryOwnedAnnotation: the policy's list is package wire's.
func TestPolicyKnowsEveryOwnedAnnotation(t *testing.T) {
	s := newServer(t, nil, "policy.yaml")
	with := func(key string) write {
		return annotationWrite(testcases.Annotations{As: testcases.Tenant, Resource: "pods", Operation: "CREATE", After: map[string]string{key: "x"}})
	}
	create := func(key string) error { return s.admit(with(key), s.policy) }
	inForce(t, s, with("gpuslice.io/grant"))
	for _, owned := range api.Owned {
		key := owned
		if owned[len(owned)-1] == '*' {
			key = owned[:len(owned)-1] + "anything"
		}
		require.ErrorContains(t, create(key), key)
		require.NoError(t, create("x"+key))
		if key == owned {
			require.NoError(t, create(key+"x"))
		}
	}
}

// TestPolicyLeavesOthersAlone: what has no pod's annotations is none of its business.
func TestPolicyLeavesOthersAlone(t *testing.T) {
	s := newServer(t, nil, "policy.yaml")
	forged := write{as: testcases.Tenant, resource: "pods", operation: admission.Create, object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"gpuslice.io/grant": "x"}}}}
	inForce(t, s, forged)
	require.NoError(t, s.admit(write{as: testcases.Tenant, resource: "pods", subresource: "eviction", operation: admission.Create, object: &policyv1.Eviction{}}, s.policy))
	require.NoError(t, s.admit(write{as: testcases.Tenant, resource: "pods", operation: admission.Delete, object: forged.object}, s.policy))
	require.NoError(t, s.admit(write{as: testcases.Tenant, resource: "configmaps", operation: admission.Create,
		object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"gpuslice.io/grant": "x"}}}}, s.policy))
}

// TestWebhooks: the configurations, through the API server's dispatchers, to the webhook. They trust its
// certificate by the caBundle that it wrote.
func TestWebhooks(t *testing.T) {
	listener := listen(t)
	s := newServer(t, listener.Addr(), "configurations.yaml", "webhook.yaml")
	webhookServer(t, s.client, listener)
	gpu := func() write {
		return write{as: testcases.Tenant, resource: "pods", operation: admission.Create, object: &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": quantity("1")}}}}}}}
	}
	eventually(t, "the webhook is trusted", func() error { return s.admit(gpu(), both{s.mutating}, s.validating) })
	configuration, err := s.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(context.Background(), "gpuslice", metav1.GetOptions{})
	require.NoError(t, err)
	secret, err := s.client.CoreV1().Secrets("kube-system").Get(context.Background(), "gpuslice-webhook-certificate", metav1.GetOptions{})
	require.NoError(t, err)
	for _, w := range configuration.Webhooks {
		require.Equal(t, string(secret.Data["tls.crt"]), string(w.ClientConfig.CABundle))
	}

	for _, tc := range testcases.AllAnnotations() {
		t.Run(tc.Name, func(t *testing.T) {
			err := s.admit(annotationWrite(tc), s.validating)
			if !tc.Denied {
				require.NoError(t, err)
				return
			}
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, tc.Message)
		})
	}
	for _, tc := range testcases.AllPods() {
		t.Run(tc.Name, func(t *testing.T) {
			pod := &corev1.Pod{}
			require.NoError(t, yaml.Unmarshal([]byte(tc.Manifest), pod))
			err := s.admit(write{as: testcases.Tenant, resource: "pods", operation: admission.Create, object: pod}, both{s.mutating}, s.validating)
			if tc.Denied != "" {
				require.ErrorContains(t, err, tc.Denied)
				return
			}
			require.NoError(t, err)
			if tc.Scheduler != "" {
				require.Equal(t, tc.Scheduler, pod.Spec.SchedulerName)
			}
		})
	}
}

// TestTheWebhookIsAway: pods that ask for GPUs and forged annotations are refused; nothing else notices.
func TestTheWebhookIsAway(t *testing.T) {
	s := newServer(t, nil, "configurations.yaml")
	for _, tc := range testcases.AllAnnotations() {
		t.Run(tc.Name, func(t *testing.T) {
			err := s.admit(annotationWrite(tc), both{s.mutating}, s.validating)
			if tc.Denied {
				require.ErrorContains(t, err, "failed calling webhook")
			}
			if domain := changesOurs(tc); !tc.Denied && !domain {
				require.NoError(t, err)
			}
		})
	}
	for _, tc := range testcases.AllPods() {
		t.Run(tc.Name, func(t *testing.T) {
			pod := &corev1.Pod{}
			require.NoError(t, yaml.Unmarshal([]byte(tc.Manifest), pod))
			err := s.admit(write{as: testcases.Tenant, resource: "pods", operation: admission.Create, object: pod}, both{s.mutating}, s.validating)
			if tc.Patch == "" && tc.Denied == "" && tc.Scheduler == "" {
				require.NoError(t, err, "a pod without GPUs")
			} else {
				require.ErrorContains(t, err, "failed calling webhook")
			}
		})
	}
}

// changesOurs reports whether a case writes annotations of the scheduler's domains. The API server calls the
// webhook for them.
func changesOurs(tc testcases.Annotations) bool {
	if tc.As == testcases.Scheduler {
		return false
	}
	for key := range tc.After {
		if key == api.AnnotationTolerance && tc.Namespace == metav1.NamespaceSystem {
			continue // the agent's own pods start while the webhook is down
		}
		for _, domain := range []string{"gpuslice.io/", "hami.io/", "tencent.com/"} {
			if len(key) > len(domain) && key[:len(domain)] == domain && tc.Before[key] != tc.After[key] {
				return true
			}
		}
	}
	for key := range tc.Before {
		_, stays := tc.After[key]
		for _, domain := range []string{"gpuslice.io/", "hami.io/", "tencent.com/"} {
			if !stays && strings.HasPrefix(key, domain) {
				return true
			}
		}
	}
	return false
}

// TestUpdatesThatNeedNoWebhook: a write of a pod with GPUs by a kubelet or a CNI calls no webhook. The
// webhook can't be reached here.
func TestUpdatesThatNeedNoWebhook(t *testing.T) {
	s := newServer(t, nil, "configurations.yaml")
	pod := func(annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: annotations}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": quantity("1")}}}}}}
	}
	old := map[string]string{"gpuslice.io/grant": "x", "nvidia.com/use-gputype": "H200"}
	cni := map[string]string{"gpuslice.io/grant": "x", "nvidia.com/use-gputype": "H200", "k8s.v1.cni.cncf.io/network-status": "[]"}
	for _, subresource := range []string{"", "status"} {
		require.NoError(t, s.admit(write{as: testcases.Kubelet, resource: "pods", subresource: subresource, operation: admission.Update, old: pod(old), object: pod(cni)}, s.validating))
	}
	rule := map[string]string{"gpuslice.io/grant": "x", "nvidia.com/use-gputype": "B200"}
	err := s.admit(write{as: testcases.Tenant, resource: "pods", operation: admission.Update, old: pod(old), object: pod(rule)}, s.validating)
	require.ErrorContains(t, err, "failed calling webhook", "a rule that the scheduler reads does")
}

// TestExpressionsKnowEveryResource: the match conditions name all resources of package request.
func TestExpressionsKnowEveryResource(t *testing.T) {
	s := newServer(t, nil, "configurations.yaml")
	for _, name := range resourceNames() {
		for _, where := range []string{"limits", "requests"} {
			for _, list := range []string{"containers", "initContainers"} {
				spec := map[string]any{"containers": []any{map[string]any{"name": "plain"}}}
				spec[list] = []any{map[string]any{"name": "main", "resources": map[string]any{where: map[string]string{name: "1"}}}}
				data, err := json.Marshal(map[string]any{"spec": spec})
				require.NoError(t, err)
				for _, plugin := range []admission.ValidationInterface{both{s.mutating}, s.validating} {
					pod := &corev1.Pod{}
					require.NoError(t, json.Unmarshal(data, pod))
					err := s.admit(write{as: testcases.Tenant, resource: "pods", operation: admission.Create, object: pod}, plugin)
					require.ErrorContains(t, err, "failed calling webhook", "%s in %s of %s", name, where, list)
				}
			}
		}
	}
}

// resourceNames are package request's.
func resourceNames() []string {
	n := request.DefaultNames()
	return []string{n.Count, n.Memory, n.MemoryPercentage, n.Cores, n.Priority, n.VcudaCore, n.VcudaMemory}
}

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

// TestTolerancesInThePolicy: each form of the toleration of missing plugins that NRI reads.
func TestTolerancesInThePolicy(t *testing.T) {
	s := newServer(t, nil, "policy.yaml")
	with := func(key, namespace string) write {
		return annotationWrite(testcases.Annotations{As: testcases.Tenant, Resource: "pods", Operation: "CREATE", Namespace: namespace, After: map[string]string{key: "true"}})
	}
	inForce(t, s, with("gpuslice.io/grant", ""))
	for _, form := range []string{"", "/pod", "/container.main"} {
		require.ErrorContains(t, s.admit(with(api.AnnotationTolerance+form, ""), s.policy), api.AnnotationTolerance+form)
		require.NoError(t, s.admit(with(api.AnnotationTolerance+form, metav1.NamespaceSystem), s.policy))
	}
}
