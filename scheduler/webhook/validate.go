package webhook

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Reasons of denials and errors: a label of the metrics.
const (
	ReasonOwned      = "owned_annotation"
	ReasonRequest    = "impossible_request"
	ReasonScheduler  = "foreign_scheduler"
	ReasonNodeName   = "node_name"
	ReasonPrivileged = "privileged"
	ReasonPlugin     = "required_plugin"
	ReasonTolerance  = "toleration"
	ReasonResize     = "resize"
	ReasonTemplate   = "template" // no ResourceClaimTemplate
	ReasonMalformed  = "malformed"
	ReasonLate       = "late" // the API server's timeout ended
)

type rejection struct{ reason, message string }

func (r *Rules) validateNew(pod *corev1.Pod) (*rejection, []string) {
	model := convert.Pod(pod)
	req, err := request.FromPod(model, r.Request)
	if err != nil {
		return &rejection{ReasonRequest, err.Error()}, nil
	}
	if req == nil {
		// The kubelet gives the pod its MIG devices, and the node compares them with the annotation.
		if _, err := grant.RequestedIsolation(pod.Annotations); err != nil {
			return &rejection{ReasonRequest, err.Error()}, nil
		}
		return nil, nil
	}
	if pod.Spec.NodeName != "" && !r.AllowNodeName {
		return &rejection{ReasonNodeName, fmt.Sprintf("spec.nodeName %q bypasses the scheduler, which assigns GPUs: "+
			"select the node by spec.nodeSelector (kubernetes.io/hostname) or node affinity", pod.Spec.NodeName)}, nil
	}
	if message := r.checkPrivileges(pod, model, req); message != "" {
		return &rejection{ReasonPrivileged, message}, nil
	}
	if rejection := r.requiresPlugin(pod, model, req); rejection != nil {
		return rejection, nil
	}
	rejection, warnings := r.scheduler(pod.Spec.SchedulerName)
	return rejection, append(warnings, r.ignoredPriority(pod.Namespace, req)...)
}

// ignoredPriority warns of a request that nodes ignore.
func (r *Rules) ignoredPriority(namespace string, req *request.Request) []string {
	if !req.HighPriority || slices.Contains(r.PriorityNamespaces, namespace) || slices.Contains(r.PriorityNamespaces, "*") {
		return nil
	}
	return []string{fmt.Sprintf("%s: 0 has no effect in namespace %q: its containers have no priority on a GPU (the operator can allow it: "+
		"--priority-namespace of the webhook and --requested-priority-namespaces of the agents)", r.Request.Names.Priority, namespace)}
}

func (r *Rules) scheduler(name string) (*rejection, []string) {
	if r.ours(name) {
		return nil, nil
	}
	message := fmt.Sprintf("the pod requests GPUs, and its scheduler %q does not assign GPUs: ", name)
	if r.ForeignSchedulers == ForeignLeave {
		return nil, []string{message + "it runs without GPUs"}
	}
	if r.SchedulerName == "" {
		return &rejection{ReasonScheduler, message + "remove spec.schedulerName"}, nil
	}
	return &rejection{ReasonScheduler, message + fmt.Sprintf("remove spec.schedulerName, or set it to %q", r.SchedulerName)}, nil
}

// validateChange rejects only what an update makes worse, so that invalid pods can still be
// labelled and deleted.
func (r *Rules) validateChange(old, pod *corev1.Pod) *rejection {
	model := convert.Pod(pod)
	req, err := request.FromPod(model, r.Request)
	oldModel := convert.Pod(old)
	oldReq, oldErr := request.FromPod(oldModel, r.Request)
	switch {
	case oldErr != nil:
		return nil
	case err != nil:
		return &rejection{ReasonRequest, err.Error()}
	case req == nil || oldReq == nil:
		return nil
	case old.Spec.NodeName != "" && req.Rules.Isolation != oldReq.Rules.Isolation:
		return &rejection{ReasonRequest, fmt.Sprintf("annotation %s: the pod has its node and its GPUs already, which the scheduler chose for the isolation %s: "+
			"create another pod with the isolation %s", api.AnnotationIsolation, oldReq.Rules.Isolation, req.Rules.Isolation)}
	}
	if r.requiresPlugin(old, oldModel, oldReq) != nil {
		return nil
	}
	return r.requiresPlugin(pod, model, req)
}

func (r *Rules) requiresPlugin(pod *corev1.Pod, model *scheduler.Pod, req *request.Request) *rejection {
	missing, err := missingRequirements(pod.Annotations, withGPUs(model, req), r.RequiredPlugin)
	if err == nil && len(missing) > 0 {
		err = errors.New("annotation " + requiredPlugins + " does not require it")
	}
	if err == nil {
		return nil
	}
	return &rejection{ReasonPlugin,
		fmt.Sprintf("containers with GPUs must require the NRI plugin %q: %v. Keep the annotation as the webhook sets it",
			r.RequiredPlugin, err)}
}

// checkPrivileges rejects pods that can open all GPUs of their node.
func (r *Rules) checkPrivileges(pod *corev1.Pod, model *scheduler.Pod, req *request.Request) string {
	if r.AllowPrivileged || slices.Contains(r.PrivilegedNamespaces, pod.Namespace) {
		return ""
	}
	if pod.Spec.HostPID {
		return "spec.hostPID shows the pod the processes of other containers, and the audit cannot distinguish them: " +
			"remove spec.hostPID, or request no GPU (the operator can allow it in a namespace: --privileged-namespace)"
	}
	for i, c := range model.Containers {
		if req.Containers[i].GPUs == 0 {
			continue
		}
		spec, _ := containerAt(pod, i)
		switch {
		case privileged(spec):
			return fmt.Sprintf("container %q is privileged: it has every GPU of its node, and no limits: "+
				"remove securityContext.privileged, or request no GPU", c.Name)
		case hasSysAdmin(spec):
			return fmt.Sprintf("container %q has the capability SYS_ADMIN: it can replace its limits and, on nodes with cgroup v1, open every GPU: "+
				"remove it from securityContext.capabilities.add, or request no GPU (the operator can allow it in a namespace: "+
				"--privileged-namespace)", c.Name)
		}
	}
	return ""
}

func privileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}

// hasSysAdmin checks for CAP_SYS_ADMIN. Runtimes ignore the case of capabilities.
func hasSysAdmin(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Capabilities != nil &&
		slices.ContainsFunc(c.SecurityContext.Capabilities.Add, func(name corev1.Capability) bool {
			switch strings.TrimPrefix(strings.ToUpper(string(name)), "CAP_") {
			case "SYS_ADMIN", "ALL":
				return true
			}
			return false
		})
}

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
