package webhook

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// changedOwned returns the scheduler's annotations that differ. A removal makes GPUs look free that
// are in use.
func changedOwned(before, after map[string]string) []string {
	changed := added(before, after, api.IsOwned)
	for key := range before {
		if _, there := after[key]; !there && api.IsOwned(key) {
			changed = append(changed, key)
		}
	}
	slices.Sort(changed)
	return changed
}

// added returns the matching keys that are new or changed.
func added(before, after map[string]string, matches func(key string) bool) []string {
	var keys []string
	for key, value := range after {
		if old, there := before[key]; (!there || old != value) && matches(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func (r *Rules) checkOwned(user string, before, after map[string]string) string {
	changed := changedOwned(before, after)
	if len(changed) == 0 || slices.Contains(r.Writers, user) {
		return ""
	}
	it := "it"
	if len(changed) > 1 {
		it = "them"
	}
	return fmt.Sprintf("only the scheduler may set, change or remove %s, and user %q is not the scheduler: leave %s as it is "+
		"(the operator names the scheduler's users by --annotation-writer)", annotations(changed), user, it)
}

// isTolerance: NRI's default validator reads it for the pod or, with a suffix, a container.
func isTolerance(key string) bool {
	rest, is := strings.CutPrefix(key, api.AnnotationTolerance)
	return is && (rest == "" || rest[0] == '/')
}

// checkTolerance rejects annotations that let containers start while the agent is down.
func (r *Rules) checkTolerance(user, namespace string, before, after map[string]string) string {
	if slices.Contains(r.Writers, user) || slices.Contains(r.ToleratedUsers, user) || slices.Contains(r.ToleratedNamespaces, namespace) {
		return ""
	}
	set := added(before, after, isTolerance)
	if len(set) == 0 {
		return ""
	}
	return fmt.Sprintf("%s would let containers start while the node's agent is down, without limits: leave it out "+
		"(the operator names namespaces and users that may have it by --tolerated-namespace and --tolerated-user)", annotations(set))
}

func annotations(keys []string) string {
	word := "annotation "
	if len(keys) > 1 {
		word = "annotations "
	}
	return word + strings.Join(keys, ", ")
}

// checkResize checks only the format and the names; the scheduler decides whether resources are
// free.
func checkResize(request *admissionv1.AdmissionRequest, before, after map[string]string) string {
	value, asked := after[api.AnnotationResize]
	if old, there := before[api.AnnotationResize]; !asked || there && old == value {
		return ""
	}
	if request.Operation == admissionv1.Create {
		return fmt.Sprintf("annotation %s is only for running pods: set the limits of the containers instead", api.AnnotationResize)
	}
	wanted, err := grant.DecodeResize(value)
	if err != nil {
		return fmt.Sprintf("annotation %s: %v", api.AnnotationResize, err)
	}
	pod, err := decodePod(request.Object.Raw, request.Namespace)
	if err != nil {
		return err.Error()
	}
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for _, name := range grant.Containers(wanted) {
		if !slices.ContainsFunc(all, func(c corev1.Container) bool { return c.Name == name }) {
			return fmt.Sprintf("annotation %s: the pod has no container %q", api.AnnotationResize, name)
		}
	}
	return ""
}
