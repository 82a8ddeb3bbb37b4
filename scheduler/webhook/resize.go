package webhook

import (
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/grant"
)

// checkResize rejects new resize requests (grant.AnnotationResize) that are malformed or name
// unknown containers. Whether the resources are free is the scheduler's decision.
func checkResize(request *admissionv1.AdmissionRequest, before, after map[string]string) string {
	value, asked := after[grant.AnnotationResize]
	if old, there := before[grant.AnnotationResize]; !asked || there && old == value {
		return ""
	}
	if request.Operation == admissionv1.Create {
		return fmt.Sprintf("annotation %s is only for running pods: set the limits of the containers instead", grant.AnnotationResize)
	}
	wanted, err := grant.DecodeResize(value)
	if err != nil {
		return fmt.Sprintf("annotation %s: %v", grant.AnnotationResize, err)
	}
	pod, err := decodePod(request.Object.Raw, request.Namespace)
	if err != nil {
		return err.Error()
	}
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for _, name := range grant.Containers(wanted) {
		if !slices.ContainsFunc(all, func(c corev1.Container) bool { return c.Name == name }) {
			return fmt.Sprintf("annotation %s: the pod has no container %q", grant.AnnotationResize, name)
		}
	}
	return ""
}
