package webhook

import (
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/grant"
)

// checkResize is why a request to resize a pod (grant.AnnotationResize) is refused at once: it can't be
// read, or names containers that the pod has not. Whether there is room is the scheduler's to say.
// One that is there already, or is taken back, is nobody's concern.
func checkResize(request *admissionv1.AdmissionRequest, before, after map[string]string) string {
	value, asked := after[grant.AnnotationResize]
	if old, there := before[grant.AnnotationResize]; !asked || there && old == value {
		return ""
	}
	if request.Operation == admissionv1.Create {
		return fmt.Sprintf("annotation %s changes what a pod has that runs: a new one asks by its containers' limits", grant.AnnotationResize)
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
			return fmt.Sprintf("annotation %s: container %q is none of the pod's", grant.AnnotationResize, name)
		}
	}
	return ""
}
