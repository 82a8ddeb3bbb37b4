package webhook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/test/testcases"
)

var quiet = slog.New(slog.DiscardHandler)

// review is a request as the API server sends it.
type review = admissionv1.AdmissionRequest

// newPod is the review of a pod's creation.
func newPod(t testing.TB, manifest string) *review {
	t.Helper()
	pod := map[string]any{}
	require.NoError(t, yaml.Unmarshal([]byte(manifest), &pod))
	if pod["metadata"] == nil {
		pod["metadata"] = map[string]any{"generateName": "p-"} // the API server sends no pod without
	}
	object, err := json.Marshal(pod)
	require.NoError(t, err)
	request := &review{UID: "705ab4f5-6393-11e8-b7cc-42010a800002", Namespace: "team-a", Operation: admissionv1.Create,
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}}
	request.Object.Raw = object
	request.UserInfo.Username = testcases.Tenant
	return request
}

// ask sends a review by HTTP and reads the answer.
func ask(t testing.TB, rules Rules, path string, request *review) *admissionv1.AdmissionResponse {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request})
	require.NoError(t, err)
	server := httptest.NewServer(Handler(rules, nil, nil, metrics.New(), quiet))
	defer server.Close()
	response, err := http.Post(server.URL+path, "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, string(data))
	var answer admissionv1.AdmissionReview
	require.NoError(t, json.Unmarshal(data, &answer))
	require.Equal(t, "admission.k8s.io/v1", answer.APIVersion)
	require.NotNil(t, answer.Response)
	require.Equal(t, request.UID, answer.Response.UID)
	return answer.Response
}

func TestPods(t *testing.T) {
	for _, tc := range testcases.AllPods() {
		t.Run(tc.Name, func(t *testing.T) {
			request := newPod(t, tc.Manifest)
			mutated := ask(t, DefaultRules(), "/mutate", request)
			require.True(t, mutated.Allowed)
			if tc.Patch == "" {
				require.Empty(t, string(mutated.Patch))
				require.Nil(t, mutated.PatchType)
			} else {
				require.JSONEq(t, tc.Patch, string(mutated.Patch))
				require.Equal(t, admissionv1.PatchTypeJSONPatch, *mutated.PatchType)
			}
			request.Object.Raw = apply(t, request.Object.Raw, mutated.Patch)
			require.Empty(t, string(ask(t, DefaultRules(), "/mutate", request).Patch), "done twice, it changes nothing more")

			answer := ask(t, DefaultRules(), "/validate", request)
			if tc.Denied != "" {
				require.False(t, answer.Allowed)
				require.Contains(t, answer.Result.Message, tc.Denied)
				require.EqualValues(t, http.StatusUnprocessableEntity, answer.Result.Code)
				return
			}
			require.True(t, answer.Allowed, "%v", answer.Result)
			var pod struct {
				Spec struct {
					SchedulerName string `json:"schedulerName"`
				} `json:"spec"`
			}
			require.NoError(t, json.Unmarshal(request.Object.Raw, &pod))
			if tc.Scheduler != "" {
				require.Equal(t, tc.Scheduler, pod.Spec.SchedulerName)
			}
		})
	}
}

func TestAnnotations(t *testing.T) {
	for _, tc := range testcases.AllAnnotations() {
		t.Run(tc.Name, func(t *testing.T) {
			answer := ask(t, DefaultRules(), "/validate", annotationReview(t, tc))
			require.Equal(t, !tc.Denied, answer.Allowed, "%v", answer.Result)
			if tc.Denied {
				require.Contains(t, answer.Result.Message, tc.Message)
				require.Equal(t, metav1.StatusReasonForbidden, answer.Result.Reason)
			}
		})
	}
}

// annotationReview is the review of such a write.
func annotationReview(t testing.TB, tc testcases.Annotations) *review {
	t.Helper()
	request := newPod(t, "{}")
	request.Resource.Resource, request.SubResource, request.Operation = tc.Resource, tc.Subresource, admissionv1.Operation(tc.Operation)
	request.UserInfo.Username = tc.As
	request.Namespace = cmp.Or(tc.Namespace, request.Namespace)
	object := func(annotations map[string]string) runtime.RawExtension {
		meta := map[string]any{"name": "p", "namespace": "team-a"}
		if annotations != nil {
			meta["annotations"] = annotations
		}
		if tc.Labels != nil {
			meta["labels"] = tc.Labels
		}
		data, err := json.Marshal(map[string]any{"apiVersion": "v1", "metadata": meta, "spec": map[string]any{"schedulerName": tc.SchedulerName, "containers": []any{map[string]any{"name": "main"}}}})
		require.NoError(t, err)
		return runtime.RawExtension{Raw: data}
	}
	request.Object = object(tc.After)
	if tc.Operation == "UPDATE" {
		request.OldObject = object(tc.Before)
	}
	return request
}

func TestOtherSettings(t *testing.T) {
	const gpu = "spec:\n  schedulerName: SCHEDULER\n  containers:\n  - {name: main, image: example.com/a:1, resources: {limits: {nvidia.com/gpu: 1}}}\n"
	with := func(change func(*Rules)) Rules {
		r := DefaultRules()
		r.RequiredPlugin = ""
		change(&r)
		return r
	}
	named := func(name string) string {
		return string(bytes.ReplaceAll([]byte(gpu), []byte("SCHEDULER"), []byte(name)))
	}
	for _, tc := range []struct {
		name, manifest string
		rules          Rules
		patch, denied  string
		warned         string
	}{
		{"a foreign scheduler is left", named("volcano"), with(func(r *Rules) { r.ForeignSchedulers = ForeignLeave }), "", "", "it runs without"},
		{"another of ours", named("hami-scheduler"), with(func(r *Rules) { r.OurSchedulers = []string{"hami-scheduler"} }), "", "", ""},
		{"the default scheduler has the extender", named("default-scheduler"), with(func(r *Rules) { r.SchedulerName, r.OurSchedulers = "", []string{"default-scheduler"} }), "", "", ""},
		{"the default scheduler has it, and there is another", named("default-scheduler"), with(func(r *Rules) { r.OurSchedulers = []string{"default-scheduler"} }), "", "", ""},
		{"no name to write", named("other"), with(func(r *Rules) { r.SchedulerName, r.OurSchedulers = "", []string{"default-scheduler"} }), "", "remove spec.schedulerName", ""},
		{"a runtime class", named("gpuslice-scheduler"), with(func(r *Rules) { r.RuntimeClass = "nvidia" }),
			`[{"op":"add","path":"/spec/runtimeClassName","value":"nvidia"}]`, "", ""},
		{"privileged, where it may be", "spec:\n  schedulerName: gpuslice-scheduler\n  containers:\n  - {name: main, securityContext: {privileged: true}, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			with(func(r *Rules) { r.AllowPrivileged = true }), "", "", ""},
		{"CAP_SYS_ADMIN and hostPID, in a privileged namespace", "spec:\n  hostPID: true\n  schedulerName: gpuslice-scheduler\n  containers:\n  - {name: main, securityContext: {capabilities: {add: [SYS_ADMIN]}}, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			with(func(r *Rules) { r.PrivilegedNamespaces = []string{"team-a"} }), "", "", ""},
		{"CAP_SYS_ADMIN, in small letters", "spec:\n  schedulerName: gpuslice-scheduler\n  containers:\n  - {name: main, securityContext: {capabilities: {add: [cap_sys_admin]}}, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			with(func(r *Rules) { r.PrivilegedNamespaces = []string{"team-b"} }), "", "has the capability SYS_ADMIN", ""},
		{"a node's name, where it may be", "spec:\n  nodeName: node-1\n  schedulerName: gpuslice-scheduler\n  containers:\n  - {name: main, resources: {limits: {nvidia.com/gpu: 1}}}\n",
			with(func(r *Rules) { r.AllowNodeName = true }), "", "", ""},
		{"no priority variable", "spec:\n  schedulerName: gpuslice-scheduler\n  containers:\n  - {name: main, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/priority: 0}}}\n",
			with(func(r *Rules) { r.TaskPriority = false }), "", "", "priority: 0 has no effect"},
		{"another default count", "spec:\n  schedulerName: gpuslice-scheduler\n  containers:\n  - {name: main, resources: {limits: {nvidia.com/gpumem: 1}, requests: {nvidia.com/gpumem: 1}}}\n",
			with(func(r *Rules) { r.Request.DefaultCount = 2 }),
			`[{"op":"add","path":"/spec/containers/0/resources/limits/nvidia.com~1gpu","value":"2"},{"op":"add","path":"/spec/containers/0/resources/requests/nvidia.com~1gpu","value":"2"}]`, "", ""},
		{"no name for the count", "spec:\n  schedulerName: gpuslice-scheduler\n  containers:\n  - {name: main, resources: {limits: {nvidia.com/gpumem: 1}}}\n",
			with(func(r *Rules) { r.Request.Names.Count = "" }), "", "", ""},
		{"other names", "spec:\n  schedulerName: gpuslice-scheduler\n  containers:\n  - {name: main, resources: {limits: {example.com/mem: 1}}}\n",
			with(func(r *Rules) { r.Request.Names.Count, r.Request.Names.Memory = "example.com/gpu", "example.com/mem" }),
			`[{"op":"add","path":"/spec/containers/0/resources/limits/example.com~1gpu","value":"1"},{"op":"add","path":"/spec/containers/0/resources/requests","value":{"example.com/gpu":"1"}}]`, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.NoError(t, tc.rules.Validate())
			request := newPod(t, tc.manifest)
			mutated := ask(t, tc.rules, "/mutate", request)
			if tc.patch == "" {
				require.Empty(t, string(mutated.Patch))
			} else {
				require.JSONEq(t, tc.patch, string(mutated.Patch))
			}
			request.Object.Raw = apply(t, request.Object.Raw, mutated.Patch)
			answer := ask(t, tc.rules, "/validate", request)
			require.Equal(t, tc.denied == "", answer.Allowed, "%v", answer.Result)
			if tc.denied != "" {
				require.Contains(t, answer.Result.Message, tc.denied)
			}
			if tc.warned != "" {
				require.Len(t, answer.Warnings, 1)
				require.Contains(t, answer.Warnings[0], tc.warned)
			} else {
				require.Empty(t, answer.Warnings)
			}
		})
	}
}

func TestInvalidRules(t *testing.T) {
	for want, change := range map[string]func(*Rules){
		"no scheduler name": func(r *Rules) { r.SchedulerName = "" },
		"must be deny":      func(r *Rules) { r.ForeignSchedulers = "perhaps" },
		"no user may write": func(r *Rules) { r.Writers = nil },
	} {
		r := DefaultRules()
		change(&r)
		require.ErrorContains(t, r.Validate(), want)
	}
	r := DefaultRules()
	require.NoError(t, r.Validate())
	require.Equal(t, []string{testcases.Scheduler}, r.Writers)
}

// A node ignores a request for priority unless the operator allows it in the namespace; the author of the pod is warned.
func TestIgnoredPriorityIsAWarning(t *testing.T) {
	const pod = "spec: {schedulerName: gpuslice-scheduler, containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/priority: PRIORITY}}}]}\n" +
		"metadata: {name: p, annotations: {required-plugins.noderesource.dev: '[gpuslice]'}}"
	for _, test := range []struct {
		priority   string
		namespaces []string
		warned     bool
	}{
		{"0", nil, true}, {"0", []string{"other"}, true}, {"0", []string{"team-a"}, false}, {"0", []string{"*"}, false}, {"1", nil, false},
	} {
		rules := DefaultRules()
		rules.PriorityNamespaces = test.namespaces
		answer := ask(t, rules, "/validate", newPod(t, strings.Replace(pod, "PRIORITY", test.priority, 1)))
		require.True(t, answer.Allowed, "%v", answer.Result)
		if !test.warned {
			require.Empty(t, answer.Warnings)
			continue
		}
		require.Len(t, answer.Warnings, 1)
		require.Contains(t, answer.Warnings[0], `nvidia.com/priority: 0 has no effect in namespace "team-a"`)
	}
}
