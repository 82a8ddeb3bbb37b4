package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/gpuslice/gpuslice/scheduler/metrics"
)

// reviews are the counters of reviews.
func reviews(t *testing.T, counters *metrics.Metrics) map[string]float64 {
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(counters))
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "gpuslice_scheduler_admission_total" {
			continue
		}
		for _, m := range f.Metric { // labels are sorted: outcome, path, reason
			all[strings.TrimSpace(m.Label[1].GetValue()+" "+m.Label[0].GetValue()+" "+m.Label[2].GetValue())] = m.Counter.GetValue()
		}
	}
	return all
}

// TestRecordedReviews: reviews as an API server of 1.36 sends them, in full.
func TestRecordedReviews(t *testing.T) {
	for file, tc := range map[string]struct{ path, want string }{
		"create": {"/mutate", `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"8f0d9a3c-6d0f-4a87-9d0f-3a0a7fc9a1ce","allowed":true,` +
			`"patch":"PATCH","patchType":"JSONPatch"}}`},
		"binding": {"/validate", `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"0c3e5c0e-2f5f-44b3-8d5d-8c0f1e0a7a11","allowed":false,` +
			`"status":{"metadata":{},"status":"Failure","message":"only the scheduler may set, change or remove annotation gpuslice.io/grant, and user \"alice\" is not the scheduler: ` +
			`leave it as it is (the operator names the scheduler's users by --annotation-writer)","reason":"Forbidden","code":403}}}`},
	} {
		t.Run(file, func(t *testing.T) {
			body, err := os.ReadFile("testdata/" + file + ".json")
			require.NoError(t, err)
			response := post(t, DefaultRules(), tc.path, "application/json; charset=utf-8", bytes.NewReader(body))
			require.Equal(t, http.StatusOK, response.Code)
			require.Equal(t, "application/json", response.Header().Get("Content-Type"))
			got := response.Body.String()
			if _, rest, patched := strings.Cut(got, `"patch":"`); patched {
				patch, _, _ := strings.Cut(rest, `"`)
				got = strings.Replace(got, patch, "PATCH", 1)
				var decoded []byte
				require.NoError(t, json.Unmarshal([]byte(`"`+patch+`"`), &decoded))
				golden, err := os.ReadFile("testdata/" + file + ".patch.json")
				require.NoError(t, err)
				require.JSONEq(t, string(golden), string(decoded))
			}
			require.JSONEq(t, tc.want, got)
		})
	}
}

func post(t testing.TB, rules Rules, path, contentType string, body io.Reader) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequest(http.MethodPost, path, body)
	request.Header.Set("Content-Type", contentType)
	response := httptest.NewRecorder()
	Handler(rules, nil, nil, metrics.New(), quiet).ServeHTTP(response, request)
	return response
}

func TestInvalidReviews(t *testing.T) {
	const start = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"`
	for _, tc := range []struct {
		name, contentType, body string
		status                  int
		want                    string
	}{
		{"nothing", "application/json", "", http.StatusBadRequest, "read the AdmissionReview"},
		{"no JSON", "application/json", "{", http.StatusBadRequest, "read the AdmissionReview"},
		{"another type of content", "text/plain", start + "}", http.StatusUnsupportedMediaType, "use application/json"},
		{"no type of content", "", start + "}", http.StatusUnsupportedMediaType, "use application/json"},
		{"another object", "application/json", `{"apiVersion":"v1","kind":"Pod"}`, http.StatusBadRequest, "use AdmissionReview of admission.k8s.io/v1"},
		{"an old version", "application/json", `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}`, http.StatusBadRequest, "admission.k8s.io/v1beta1"},
		{"no request", "application/json", start + "}", http.StatusBadRequest, "has no request"},
		{"no uid", "application/json", start + `,"request":{}}`, http.StatusBadRequest, "has no uid"},
		{"too large", "application/json", start + `,"x":"` + strings.Repeat("x", maxBody) + `"}`, http.StatusRequestEntityTooLarge, "larger than"},
		{"too deep", "application/json", start + `,"request":` + strings.Repeat(`{"a":`, 20000) + strings.Repeat("}", 20001), http.StatusBadRequest, "read the AdmissionReview"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			response := post(t, DefaultRules(), "/validate", tc.contentType, strings.NewReader(tc.body))
			require.Equal(t, tc.status, response.Code)
			require.Contains(t, response.Body.String(), tc.want)
		})
	}
	response := httptest.NewRecorder()
	Handler(DefaultRules(), nil, nil, metrics.New(), quiet).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/mutate", nil))
	require.Equal(t, http.StatusMethodNotAllowed, response.Code)
}

// TestInvalidObjects are refused, not let through.
func TestInvalidObjects(t *testing.T) {
	for name, object := range map[string]string{
		"nothing": "", "no object": `[]`, "a quantity that is none": `{"spec":{"containers":[{"resources":{"limits":{"nvidia.com/gpu":"x"}}}]}}`,
		"annotations that are none": `{"metadata":{"annotations":{"a":1}}}`,
		"containers without end":    `{"spec":{"containers":[{}` + strings.Repeat(",{}", maxContainers) + `]}}`,
	} {
		for _, path := range []string{"/mutate", "/validate"} {
			t.Run(name+path, func(t *testing.T) {
				request := newPod(t, "{}")
				request.Object.Raw = nil
				if object != "" {
					request.Object.Raw = []byte(object)
				}
				answer := ask(t, DefaultRules(), path, request)
				require.False(t, answer.Allowed)
				require.EqualValues(t, http.StatusBadRequest, answer.Result.Code)
			})
		}
	}
}

func TestOtherObjectsAreAdmitted(t *testing.T) {
	for name, change := range map[string]func(*review){
		"another group's pods": func(r *review) { r.Resource.Group = "example.com" },
		"another resource":     func(r *review) { r.Resource.Resource = "configmaps" },
		"a deletion":           func(r *review) { r.Operation = admissionv1.Delete },
		"a connection":         func(r *review) { r.Operation, r.SubResource = admissionv1.Connect, "exec" },
	} {
		t.Run(name, func(t *testing.T) {
			request := newPod(t, "metadata: {annotations: {gpuslice.io/grant: x}}\nspec: {nodeName: node-1, containers: [{resources: {limits: {nvidia.com/gpu: 1}}}]}")
			change(request)
			for _, path := range []string{"/mutate", "/validate"} {
				answer := ask(t, DefaultRules(), path, request)
				require.True(t, answer.Allowed)
				require.Empty(t, string(answer.Patch))
			}
		})
	}
}

func TestHealth(t *testing.T) {
	for _, tc := range []struct {
		path   string
		ready  func() error
		status int
	}{
		{"/healthz", func() error { return errors.New("no certificate") }, http.StatusOK},
		{"/readyz", func() error { return errors.New("no certificate") }, http.StatusServiceUnavailable},
		{"/readyz", func() error { return nil }, http.StatusOK},
		{"/readyz", nil, http.StatusOK},
		{"/elsewhere", nil, http.StatusNotFound},
	} {
		response := httptest.NewRecorder()
		Handler(DefaultRules(), nil, tc.ready, metrics.New(), quiet).ServeHTTP(response, httptest.NewRequest(http.MethodGet, tc.path, nil))
		require.Equal(t, tc.status, response.Code, tc.path)
	}
}

func TestMetrics(t *testing.T) {
	counters := metrics.New()
	handler := Handler(DefaultRules(), nil, nil, counters, quiet)
	send := func(path string, request *review) {
		body, err := json.Marshal(admissionv1.AdmissionReview{Request: request})
		require.NoError(t, err)
		text := strings.Replace(string(body), "{", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",`, 1)
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(text))
		r.Header.Set("Content-Type", "application/json")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	send("/mutate", newPod(t, "spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}"))
	send("/mutate", newPod(t, "spec: {containers: [{name: a}]}"))
	send("/validate", newPod(t, "spec: {containers: [{name: a, resources: {limits: {tencent.com/vcuda-core: 150}}}]}"))
	send("/validate", &review{})
	require.Equal(t, map[string]float64{"/mutate patched": 1, "/mutate allowed": 1, "/validate denied impossible_request": 1,
		"/validate error malformed": 1}, reviews(t, counters))
}

// FuzzHandler: every request gets an answer, and malformed ones are not admitted.
func FuzzHandler(f *testing.F) {
	for _, file := range []string{"create", "binding"} {
		body, err := os.ReadFile("testdata/" + file + ".json")
		require.NoError(f, err)
		f.Add(body)
	}
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"x","operation":"UPDATE","resource":{"version":"v1","resource":"pods"},` +
		`"object":{"spec":{"containers":[{"resources":{"limits":{"nvidia.com/gpu":"1"}}}]}},"oldObject":{}}}`))
	rules := DefaultRules()
	rules.RuntimeClass = "nvidia"
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/mutate", "/validate"} {
			response := post(t, rules, path, "application/json", bytes.NewReader(body))
			if response.Code != http.StatusOK {
				require.Equal(t, http.StatusBadRequest, response.Code)
				require.NotEmpty(t, response.Body.String())
				continue
			}
			var answer admissionv1.AdmissionReview
			require.NoError(t, json.Unmarshal(response.Body.Bytes(), &answer))
			require.NotEmpty(t, answer.Response.UID)
			if !answer.Response.Allowed {
				require.NotEmpty(t, answer.Response.Result.Message)
			}
		}
	})
}
