package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/resourceclaims"
)

func claimRules(namespaces ...string) Rules {
	rules := DefaultRules()
	rules.ClaimNamespaces = namespaces
	return rules
}

// newCluster has templates in a cluster without GPUs.
func newCluster() (*fake.Clientset, *resourceclaims.Templates) {
	client := fake.NewClientset()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	return client, &resourceclaims.Templates{Client: client, Now: func() time.Time { return now }, Log: quiet}
}

func templatesIn(t *testing.T, client *fake.Clientset) []resourceapi.ResourceClaimTemplate {
	t.Helper()
	list, err := client.ResourceV1().ResourceClaimTemplates("team-a").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

// answered is the webhook's answer about a new pod, and the pod with its patch.
func answered(t *testing.T, rules Rules, templates Templates, request *review) (*admissionv1.AdmissionResponse, *corev1.Pod) {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request})
	require.NoError(t, err)
	response := httptest.NewRecorder()
	call := httptest.NewRequest(http.MethodPost, "/mutate", bytes.NewReader(body))
	call.Header.Set("Content-Type", "application/json")
	Handler(rules, templates, nil, metrics.New(), quiet).ServeHTTP(response, call)
	require.Equal(t, http.StatusOK, response.Code, response.Body.String())
	var answer admissionv1.AdmissionReview
	require.NoError(t, json.Unmarshal(response.Body.Bytes(), &answer))
	request.Object.Raw = apply(t, request.Object.Raw, answer.Response.Patch)
	var pod corev1.Pod
	require.NoError(t, json.Unmarshal(request.Object.Raw, &pod))
	return answer.Response, &pod
}

const sharePod = `
metadata: {name: p, annotations: {nvidia.com/use-gputype: H200, a: b}}
spec:
  schedulerName: default-scheduler
  resourceClaims: [{name: gpuslice-0, resourceClaimName: x}]
  initContainers:
  - {name: fetch, resources: {limits: {cpu: 1}}}
  containers:
  - {name: main, resources: {limits: {cpu: 1, nvidia.com/gpu: 1, nvidia.com/gpumem: 30720, nvidia.com/priority: 0}, requests: {cpu: 1, nvidia.com/gpu: 1}}}
  - {name: other, resources: {claims: [{name: gpuslice-0}], limits: {nvidia.com/gpucores: 30, nvidia.com/gpumem: 1024}}}
  - {name: third, resources: {limits: {nvidia.com/gpumem: 30720, nvidia.com/gpu: 1}}}
`

func TestClaims(t *testing.T) {
	client, templates := newCluster()
	rules := claimRules("other", "team-a")
	answer, pod := answered(t, rules, templates, newPod(t, sharePod))
	require.True(t, answer.Allowed, "%v", answer.Result)
	require.Len(t, answer.Warnings, 1)
	require.Contains(t, answer.Warnings[0], `nvidia.com/priority: 0 has no effect in namespace "team-a"`)

	require.Equal(t, "default-scheduler", pod.Spec.SchedulerName, "any scheduler allocates ResourceClaims")
	require.Equal(t, map[string]string{"nvidia.com/use-gputype": "H200", "a": "b", requiredPlugins: `["gpuslice"]`}, pod.Annotations)
	require.Len(t, pod.Spec.ResourceClaims, 4)
	var names []string
	for _, c := range pod.Spec.ResourceClaims[1:] {
		names = append(names, c.Name)
	}
	require.Equal(t, []string{"gpuslice-1", "gpuslice-2", "gpuslice-3"}, names)
	require.Empty(t, pod.Spec.InitContainers[0].Resources.Claims)
	main, other, third := &pod.Spec.Containers[0], &pod.Spec.Containers[1], &pod.Spec.Containers[2]
	require.Equal(t, []corev1.ResourceClaim{{Name: "gpuslice-1"}}, main.Resources.Claims)
	require.Equal(t, []corev1.ResourceClaim{{Name: "gpuslice-0"}, {Name: "gpuslice-2"}}, other.Resources.Claims)
	require.Equal(t, []corev1.EnvVar{{Name: api.EnvTaskPriority, Value: "0"}}, main.Env)
	require.Len(t, main.Resources.Limits, 1, "the CPU")
	require.Len(t, main.Resources.Requests, 1)
	require.Empty(t, other.Resources.Limits)
	require.Empty(t, third.Resources.Limits)
	require.Equal(t, pod.Spec.ResourceClaims[1].ResourceClaimTemplateName, pod.Spec.ResourceClaims[3].ResourceClaimTemplateName, "equal requests")

	created := templatesIn(t, client)
	require.Len(t, created, 2)
	for _, template := range created {
		require.Contains(t, []string{*pod.Spec.ResourceClaims[1].ResourceClaimTemplateName, *pod.Spec.ResourceClaims[2].ResourceClaimTemplateName}, template.Name)
		require.Contains(t, template.Spec.Spec.Devices.Requests[0].Exactly.Selectors[0].CEL.Expression, `["h200"]`)
	}

	data, err := json.Marshal(pod)
	require.NoError(t, err)
	again := newPod(t, string(data))
	answer, _ = answered(t, rules, templates, again)
	require.True(t, answer.Allowed)
	require.Empty(t, answer.Patch, "done twice, it changes nothing more")
	require.True(t, ask(t, rules, "/validate", again).Allowed)

	_, same := answered(t, rules, templates, newPod(t, sharePod))
	require.Equal(t, pod.Spec, same.Spec)
	require.Len(t, templatesIn(t, client), 2, "the next pod has the same templates")
}

func TestClaimsInNamespaces(t *testing.T) {
	for _, rules := range []Rules{DefaultRules(), claimRules("other")} {
		client, templates := newCluster()
		answer, pod := answered(t, rules, templates, newPod(t, sharePod))
		require.True(t, answer.Allowed)
		require.Len(t, pod.Spec.ResourceClaims, 1)
		require.Equal(t, "gpuslice-scheduler", pod.Spec.SchedulerName)
		require.Empty(t, client.Actions())
	}
	client, templates := newCluster()
	_, pod := answered(t, claimRules("*"), templates, newPod(t, sharePod))
	require.Len(t, pod.Spec.ResourceClaims, 4)
	require.Len(t, templatesIn(t, client), 2)

	none, pod := answered(t, claimRules("*"), templates, newPod(t, `spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 0}}}]}`))
	require.Empty(t, none.Patch)
	require.Empty(t, pod.Spec.ResourceClaims)
}

func TestClaimsDryRun(t *testing.T) {
	client, templates := newCluster()
	dry := newPod(t, sharePod)
	dry.DryRun = new(true)
	answer, pod := answered(t, claimRules("*"), templates, dry)
	require.True(t, answer.Allowed)
	require.Len(t, pod.Spec.ResourceClaims, 4)
	require.Empty(t, client.Actions())
}

func TestClaimsRejected(t *testing.T) {
	const limits = `resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}}`
	for name, test := range map[string]struct{ manifest, message string }{
		"privileged": {`spec: {containers: [{name: main, securityContext: {privileged: true}, ` + limits + `}]}`, "is privileged"},
		"root":       {`spec: {hostPID: true, containers: [{name: main, ` + limits + `}]}`, "spec.hostPID"},
		"node":       {`spec: {nodeName: node-1, containers: [{name: main, ` + limits + `}]}`, "bypasses the scheduler, which allocates ResourceClaims"},
		"annotation": {`{metadata: {annotations: {nvidia.com/vgpu-mode: mps}}, spec: {containers: [{name: main, ` + limits + `}]}}`, "nvidia.com/vgpu-mode"},
		"plugins":    {`{metadata: {annotations: {required-plugins.noderesource.dev: "{"}}, spec: {containers: [{name: main, ` + limits + `}]}}`, "must be a list"},
		"no sizes":   {`spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpumem-percentage: 50}}}]}`, "no GPU is offered"},
	} {
		t.Run(name, func(t *testing.T) {
			client, templates := newCluster()
			answer, _ := answered(t, claimRules("*"), templates, newPod(t, test.manifest))
			require.False(t, answer.Allowed)
			require.Contains(t, answer.Result.Message, test.message)
			require.Empty(t, templatesIn(t, client))
		})
	}
	t.Run("an invalid request is validate's", func(t *testing.T) {
		_, templates := newCluster()
		invalid := newPod(t, `spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpucores: 101, nvidia.com/gpu: 1}}}]}`)
		answer, _ := answered(t, claimRules("*"), templates, invalid)
		require.True(t, answer.Allowed)
		require.False(t, ask(t, claimRules("*"), "/validate", invalid).Allowed)
	})
}

// A user of the namespace can create a template of the name first.
func TestClaimsWithForeignTemplate(t *testing.T) {
	client, templates := newCluster()
	answered(t, claimRules("*"), templates, newPod(t, sharePod))
	changed := templatesIn(t, client)[0].DeepCopy()
	changed.Spec.Spec.Devices.Requests[0].Exactly.AdminAccess = new(true)
	_, err := client.ResourceV1().ResourceClaimTemplates("team-a").Update(t.Context(), changed, metav1.UpdateOptions{})
	require.NoError(t, err)
	answer, _ := answered(t, claimRules("*"), templates, newPod(t, sharePod))
	require.False(t, answer.Allowed)
	require.Contains(t, answer.Result.Message, "the ResourceClaimTemplate "+changed.Name+" has another content than the pod's request")
}

// failing are templates of a cluster that can't be reached.
type failing struct{}

func (failing) Period() int64 { return 1 }
func (failing) Sizes(context.Context) (resourceclaims.Sizes, error) {
	return resourceclaims.Sizes{}, errors.New("no sizes")
}
func (failing) Ensure(context.Context, string, *resourceapi.ResourceClaimTemplate) error {
	return errors.New("no templates")
}

func TestClaimsErrors(t *testing.T) {
	answer, _ := answered(t, claimRules("*"), failing{}, newPod(t, sharePod))
	require.False(t, answer.Allowed)
	require.Contains(t, answer.Result.Message, "no templates")
	answer, _ = answered(t, claimRules("*"), failing{}, newPod(t, `spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpumem-percentage: 50}}}]}`))
	require.False(t, answer.Allowed)
	require.Contains(t, answer.Result.Message, "no sizes")

	o := DefaultOptions()
	o.ClaimNamespaces, o.CertFile, o.KeyFile = []string{"*"}, "a", "b"
	require.ErrorContains(t, o.Validate(), "set a kubeconfig")
}

// Whatever a pod requests: afterwards it requests no GPUs, or all of its requests are as they were. Each container that requested
// GPUs has one ResourceClaim more, and a second run changes nothing.
// A tenant's pod makes the webhook create a bounded number of objects, and one of each.
func TestClaimsAreBounded(t *testing.T) {
	for _, test := range []struct {
		containers, different int
		allowed               bool
	}{{64, 1, true}, {maxTemplates, maxTemplates, true}, {maxTemplates + 1, maxTemplates + 1, false}} {
		client, templates := newCluster()
		manifest := "spec: {containers: ["
		for i := range test.containers {
			manifest += fmt.Sprintf("{name: c%d, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: %d}}}, ", i, 1000+i%test.different)
		}
		response, _ := answered(t, claimRules("team-a"), templates, newPod(t, manifest+"]}"))
		require.Equal(t, test.allowed, response.Allowed, "%v", response.Result)
		created := 0
		for _, action := range client.Actions() {
			if action.GetVerb() == "create" {
				created++
			}
		}
		if test.allowed {
			require.Equal(t, test.different, created)
		} else {
			require.Zero(t, created)
		}
	}
}

func TestTranslatePods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := claimRules("*")
		rules.AllowPrivileged = true
		pod := &corev1.Pod{}
		pod.Annotations = annotated.Draw(t, "annotations")
		pod.Spec.InitContainers = containers(rules.Request.Names, "init-").Draw(t, "init containers")
		pod.Spec.Containers = containers(rules.Request.Names, "").Draw(t, "containers")
		before, err := json.Marshal(pod)
		require.NoError(t, err)
		asked, askedErr := request.FromPod(convert.Pod(pod), rules.Request)
		c := claims{1, func() (resourceclaims.Sizes, error) { return resourceclaims.Sizes{GPUs: []int64{1000, 143771}}, nil }}
		a := rules.translate(pod, c)
		if askedErr != nil || asked == nil || a.rejection != nil {
			require.Empty(t, a.patch)
			require.Empty(t, a.templates)
			return
		}
		patch, err := json.Marshal(a.patch)
		require.NoError(t, err)
		var mutated corev1.Pod
		require.NoError(t, json.Unmarshal(apply(t, before, patch), &mutated))
		again, err := request.FromPod(convert.Pod(&mutated), rules.Request)
		require.NoError(t, err)
		require.Nil(t, again)
		require.Empty(t, rules.translate(&mutated, c).patch)
		require.Len(t, mutated.Spec.ResourceClaims, len(a.templates))
		for i, c := range asked.Containers {
			was, _ := containerAt(pod, i)
			is, _ := containerAt(&mutated, i)
			require.Len(t, is.Resources.Claims, min(c.GPUs, 1))
			require.Equal(t, was.Resources.Limits.Cpu().String(), is.Resources.Limits.Cpu().String())
		}
	})
}
