package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

const reviewKind = "AdmissionReview"

var reviewVersion = admissionv1.SchemeGroupVersion.String()

func decodeReview(body []byte) (*admissionv1.AdmissionRequest, error) {
	var review admissionv1.AdmissionReview
	if err := utiljson.Unmarshal(body, &review); err != nil {
		return nil, fmt.Errorf("read the AdmissionReview: %w", err)
	}
	switch {
	case review.Kind != reviewKind || review.APIVersion != reviewVersion:
		return nil, fmt.Errorf("unsupported kind %.64q of %.64q: use %s of %s", review.Kind, review.APIVersion, reviewKind, reviewVersion)
	case review.Request == nil:
		return nil, errors.New("the AdmissionReview has no request")
	case review.Request.UID == "":
		return nil, errors.New("the AdmissionReview's request has no uid")
	}
	return review.Request, nil
}

type answer struct {
	rejection *rejection
	patch     []operation
	warnings  []string
	// templates have to exist before the pod.
	templates []*resourceapi.ResourceClaimTemplate
}

func reject(reason, message string) answer { return answer{rejection: &rejection{reason, message}} }

func (a answer) encode(request *admissionv1.AdmissionRequest) ([]byte, error) {
	response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: a.rejection == nil, Warnings: a.warnings}
	if a.rejection != nil {
		response.Result = &metav1.Status{Status: metav1.StatusFailure, Message: a.rejection.message,
			Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity}
		switch a.rejection.reason {
		case ReasonOwned, ReasonTolerance:
			response.Result.Reason, response.Result.Code = metav1.StatusReasonForbidden, http.StatusForbidden
		case ReasonMalformed:
			response.Result.Reason, response.Result.Code = metav1.StatusReasonBadRequest, http.StatusBadRequest
		}
	}
	if len(a.patch) > 0 {
		patch, err := json.Marshal(a.patch)
		if err != nil {
			return nil, fmt.Errorf("write the patch: %w", err)
		}
		kind := admissionv1.PatchTypeJSONPatch
		response.Patch, response.PatchType = patch, &kind
	}
	return json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{Kind: reviewKind, APIVersion: reviewVersion}, Response: response,
	})
}

type endpoint struct{ name, subresource string }

func resourceOf(request *admissionv1.AdmissionRequest) endpoint {
	if request.Resource.Group != "" {
		return endpoint{}
	}
	return endpoint{request.Resource.Resource, request.SubResource}
}

var (
	pods     = endpoint{"pods", ""}
	bindings = endpoint{"bindings", ""} // deprecated form of pods/binding
)

func (r *Rules) answerMutate(request *admissionv1.AdmissionRequest, c claims) answer {
	if resourceOf(request) != pods || request.Operation != admissionv1.Create {
		return answer{}
	}
	pod, err := decodePod(request.Object.Raw, request.Namespace)
	if err != nil {
		return reject(ReasonMalformed, err.Error())
	}
	if r.claims(pod.Namespace) {
		return r.translate(pod, c)
	}
	return answer{patch: r.mutate(pod)}
}

func (r *Rules) answerValidate(request *admissionv1.AdmissionRequest) answer {
	about := resourceOf(request)
	if about.name != pods.name && about != bindings ||
		request.Operation != admissionv1.Create && request.Operation != admissionv1.Update {
		return answer{}
	}
	var object, old struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	err := decodeObject(request.Object.Raw, &object)
	if err == nil && request.Operation == admissionv1.Update {
		err = decodeObject(request.OldObject.Raw, &old)
	}
	if err != nil {
		return reject(ReasonMalformed, err.Error())
	}
	if message := r.checkOwned(request.UserInfo.Username, old.Metadata.Annotations, object.Metadata.Annotations); message != "" {
		return reject(ReasonOwned, message)
	}
	if message := r.checkTolerance(request.UserInfo.Username, request.Namespace, old.Metadata.Annotations,
		object.Metadata.Annotations); message != "" {
		return reject(ReasonTolerance, message)
	}
	if about != pods {
		return answer{}
	}
	if message := checkResize(request, old.Metadata.Annotations, object.Metadata.Annotations); message != "" {
		return reject(ReasonResize, message)
	}
	return r.answerPod(request)
}

func (r *Rules) answerPod(request *admissionv1.AdmissionRequest) answer {
	pod, err := decodePod(request.Object.Raw, request.Namespace)
	if err != nil {
		return reject(ReasonMalformed, err.Error())
	}
	if request.Operation == admissionv1.Update {
		old, err := decodePod(request.OldObject.Raw, request.Namespace)
		if err != nil {
			return reject(ReasonMalformed, err.Error())
		}
		return answer{rejection: r.validateChange(old, pod)}
	}
	rejection, warnings := r.validateNew(pod)
	return answer{rejection: rejection, warnings: warnings}
}

func decodeObject(raw []byte, into any) error {
	if len(raw) == 0 {
		return errors.New("the review has no object: check the rules of the webhook configuration")
	}
	if err := utiljson.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("read the review's object: %w", err)
	}
	return nil
}

const maxContainers = 1024 // see also grant.MaxContainers

// view has the fields that are read. Lists of empty objects in a complete pod would need a hundred
// times as much memory as their JSON.
type view struct {
	Metadata struct {
		Name        string            `json:"name"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		SchedulerName    string          `json:"schedulerName"`
		NodeName         string          `json:"nodeName"`
		RuntimeClassName *string         `json:"runtimeClassName"`
		Priority         *int32          `json:"priority"`
		HostPID          bool            `json:"hostPID"`
		InitContainers   []containerView `json:"initContainers"`
		Containers       []containerView `json:"containers"`
		ResourceClaims   []named         `json:"resourceClaims"`
	} `json:"spec"`
}

type named struct {
	Name string `json:"name"`
}

type containerView struct {
	Name      string  `json:"name"`
	Env       []named `json:"env"`
	Resources struct {
		Limits   corev1.ResourceList `json:"limits"`
		Requests corev1.ResourceList `json:"requests"`
		Claims   []named             `json:"claims"`
	} `json:"resources"`
	SecurityContext struct {
		Privileged   *bool `json:"privileged"`
		Capabilities struct {
			Add []corev1.Capability `json:"add"`
		} `json:"capabilities"`
	} `json:"securityContext"`
	RestartPolicy *corev1.ContainerRestartPolicy `json:"restartPolicy"`
}

type counted struct{}

// UnmarshalJSON ignores the value.
func (*counted) UnmarshalJSON([]byte) error { return nil }

// decodePod sets the review's namespace: the pod's own may be missing.
func decodePod(raw []byte, namespace string) (*corev1.Pod, error) {
	var count struct {
		Spec struct {
			InitContainers []counted `json:"initContainers"`
			Containers     []counted `json:"containers"`
		} `json:"spec"`
	}
	if err := decodeObject(raw, &count); err != nil {
		return nil, err
	}
	if n := len(count.Spec.InitContainers) + len(count.Spec.Containers); n > maxContainers {
		return nil, fmt.Errorf("the pod has %d containers: the maximum is %d", n, maxContainers)
	}
	var v view
	if err := decodeObject(raw, &v); err != nil {
		return nil, err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v.Metadata.Name, Labels: v.Metadata.Labels,
			Annotations: v.Metadata.Annotations},
		Spec: corev1.PodSpec{
			SchedulerName: v.Spec.SchedulerName, NodeName: v.Spec.NodeName, RuntimeClassName: v.Spec.RuntimeClassName, Priority: v.Spec.Priority, HostPID: v.Spec.HostPID,
			InitContainers: containersOf(v.Spec.InitContainers), Containers: containersOf(v.Spec.Containers),
		},
	}
	for _, c := range v.Spec.ResourceClaims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c.Name})
	}
	return pod, nil
}

func containersOf(views []containerView) []corev1.Container {
	list := make([]corev1.Container, len(views))
	for i, v := range views {
		list[i] = corev1.Container{
			Name: v.Name, RestartPolicy: v.RestartPolicy,
			Resources: corev1.ResourceRequirements{Limits: v.Resources.Limits, Requests: v.Resources.Requests},
			SecurityContext: &corev1.SecurityContext{
				Privileged: v.SecurityContext.Privileged, Capabilities: &corev1.Capabilities{Add: v.SecurityContext.Capabilities.Add},
			},
		}
		for _, c := range v.Resources.Claims {
			list[i].Resources.Claims = append(list[i].Resources.Claims, corev1.ResourceClaim{Name: c.Name})
		}
		for _, e := range v.Env {
			list[i].Env = append(list[i].Env, corev1.EnvVar{Name: e.Name})
		}
	}
	return list
}
