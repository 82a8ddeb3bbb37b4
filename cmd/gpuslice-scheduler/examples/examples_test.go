// Package examples validates the manifests of examples/kubernetes as the API server and the webhook do.
package examples

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	autoscalingvalidation "k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	schedulingvalidation "k8s.io/kubernetes/pkg/apis/scheduling/validation"

	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/webhook"
)

const examples = "../../../examples/kubernetes"

// Each example is valid by the API's own rules, the webhook admits it, and its pods request what the example states.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 20)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var got []string
			for _, document := range strings.Split(string(text), "\n---\n") {
				object, err := decode(document)
				require.NoError(t, err)
				require.NoError(t, check(object))
				if pod := podOf(object); pod != nil {
					admitted, err := admit(pod)
					require.NoError(t, err)
					text, err := gets(admitted)
					require.NoError(t, err)
					got = append(got, text)
				}
			}
			require.NotEmpty(t, got)
			require.Equal(t, stated(string(text)), got)
		})
	}
}

// stated is what its pods get by the comments of an example.
func stated(text string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^# Gets: (.*)$`).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// gets is what a pod requests.
func gets(pod *v1.Pod) (string, error) {
	var all []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name, amount := range c.Resources.Limits {
			if strings.HasPrefix(string(name), "nvidia.com/mig-") {
				all = append(all, fmt.Sprintf("%s: %s x %s", c.Name, amount.String(), name))
			}
		}
	}
	model := convert.Pod(pod)
	requested, err := request.FromPod(model, request.DefaultOptions())
	if err != nil {
		return "", err
	}
	if requested != nil {
		if pod.Spec.SchedulerName != "gpuslice-scheduler" {
			return "", fmt.Errorf("the scheduler is %q", pod.Spec.SchedulerName)
		}
		for i, c := range requested.Containers {
			if c.GPUs == 0 {
				continue
			}
			memory := fmt.Sprintf("%d MiB", c.MemoryMiB)
			if c.MemoryMiB == 0 {
				memory = fmt.Sprintf("%d%% of the memory", c.MemoryPercent)
			}
			text := fmt.Sprintf("%s: %d x %s", model.Containers[i].Name, c.GPUs, memory)
			if c.Cores > 0 {
				text += fmt.Sprintf(", %d%% of the time", c.Cores)
			}
			all = append(all, text)
		}
	}
	return cmp.Or(strings.Join(all, "; "), "no GPU"), nil
}

// decode reads an object as the API server does with strict validation: unknown fields are errors.
func decode(text string) (runtime.Object, error) {
	decoder := serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, legacyscheme.Scheme, legacyscheme.Scheme,
		serializer.SerializerOptions{Yaml: true, Strict: true})
	object, _, err := decoder.Decode([]byte(text), nil, nil)
	return object, err
}

// check validates an object, with defaults, as the API server does.
func check(object runtime.Object) error {
	object = object.DeepCopyObject()
	legacyscheme.Scheme.Default(object)
	internal, err := legacyscheme.Scheme.ConvertToVersion(object, runtime.InternalGroupVersioner)
	if err != nil {
		return err
	}
	if named, ok := internal.(metav1.Object); ok && named.GetNamespace() == "" {
		named.SetNamespace("team")
	}
	var errs field.ErrorList
	var o corevalidation.PodValidationOptions
	switch object := internal.(type) {
	case *core.Pod:
		errs = corevalidation.ValidatePodCreate(object, o)
	case *core.ResourceQuota:
		errs = corevalidation.ValidateResourceQuota(object)
	case *core.Service:
		object.Spec.ClusterIPs = []string{cmp.Or(object.Spec.ClusterIP, "10.0.0.1")} // which the API server sets
		object.Spec.ClusterIP = object.Spec.ClusterIPs[0]
		errs = corevalidation.ValidateServiceCreate(object)
	case *apps.Deployment:
		errs = appsvalidation.ValidateDeployment(object, o)
	case *apps.StatefulSet:
		errs = appsvalidation.ValidateStatefulSet(object, o)
	case *batch.Job: // without the selector, which the API server makes
		errs = batchvalidation.ValidateJobTemplateSpec(&batch.JobTemplateSpec{Spec: object.Spec}, field.NewPath("job"), o)
	case *batch.CronJob:
		errs = batchvalidation.ValidateCronJobCreate(object, o)
	case *autoscaling.HorizontalPodAutoscaler:
		errs = autoscalingvalidation.ValidateHorizontalPodAutoscaler(object, autoscalingvalidation.HorizontalPodAutoscalerSpecValidationOptions{})
	case *scheduling.PriorityClass:
		object.Namespace = ""
		errs = schedulingvalidation.ValidatePriorityClass(object)
	default:
		return fmt.Errorf("no rules for %T: add them", object)
	}
	return errs.ToAggregate()
}

// podOf is an object's pod, with defaults as the API server sets them; nil: it has none.
func podOf(object runtime.Object) *v1.Pod {
	var template v1.PodTemplateSpec
	switch o := object.(type) {
	case *v1.Pod:
		template = v1.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec}
	case *appsv1.Deployment:
		template = o.Spec.Template
	case *appsv1.StatefulSet:
		template = o.Spec.Template
	case *batchv1.Job:
		template = o.Spec.Template
	case *batchv1.CronJob:
		template = o.Spec.JobTemplate.Spec.Template
	default:
		return nil
	}
	pod := &v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace = "team"
	legacyscheme.Scheme.Default(pod)
	return pod
}

// admit asks the webhook as the API server does, and returns the pod as it is stored.
func admit(pod *v1.Pod) (*v1.Pod, error) {
	server := httptest.NewServer(webhook.Handler(webhook.DefaultRules(), nil, nil, metrics.New(), slog.New(slog.DiscardHandler)))
	defer server.Close()
	raw, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	for _, path := range []string{"/mutate", "/validate"} {
		body, err := json.Marshal(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
			Request: &admissionv1.AdmissionRequest{
				UID: "1", Operation: admissionv1.Create, Namespace: pod.Namespace,
				Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
				Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
				Object:   runtime.RawExtension{Raw: raw},
			},
		})
		if err != nil {
			return nil, err
		}
		response, err := http.Post(server.URL+path, "application/json", bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			return nil, err
		}
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(data, &review); err != nil {
			return nil, fmt.Errorf("%w: %s", err, data)
		}
		if !review.Response.Allowed {
			return nil, fmt.Errorf("%s: %s", path, review.Response.Result.Message)
		}
		if len(review.Response.Patch) > 0 {
			patch, err := jsonpatch.DecodePatch(review.Response.Patch)
			if err != nil {
				return nil, err
			}
			if raw, err = patch.Apply(raw); err != nil {
				return nil, err
			}
		}
	}
	var admitted v1.Pod
	return &admitted, json.Unmarshal(raw, &admitted)
}

// The checks refuse what they are for.
func TestExamplesThatAreWrong(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(examples, "share.yaml"))
	require.NoError(t, err)
	changed := func(from, to string) string {
		require.Contains(t, string(text), from)
		return strings.Replace(string(text), from, to, 1)
	}
	_, err = decode(changed("limits:", "limit:"))
	require.ErrorContains(t, err, "unknown field")
	object, err := decode(changed("restartPolicy: Never", "restartPolicy: Maybe"))
	require.NoError(t, err)
	require.ErrorContains(t, check(object), "restartPolicy")
	object, err = decode(changed("nvidia.com/gpucores: 25", "nvidia.com/gpucores: 250"))
	require.NoError(t, err)
	require.NoError(t, check(object))
	_, err = admit(podOf(object))
	require.ErrorContains(t, err, "percent of each GPU")
	object, err = decode(changed("nvidia.com/gpumem: 4096", "nvidia.com/gpumem: 4097"))
	require.NoError(t, err)
	admitted, err := admit(podOf(object))
	require.NoError(t, err)
	got, err := gets(admitted)
	require.NoError(t, err)
	require.NotEqual(t, stated(string(text)), []string{got})
}
