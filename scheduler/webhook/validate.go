package webhook

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Why a review was answered as it was: the metrics' label.
const (
	WhyOwned      = "owned_annotation"
	WhyRequest    = "impossible_request"
	WhyScheduler  = "foreign_scheduler"
	WhyNodeName   = "node_name"
	WhyPrivileged = "privileged"
	WhyPlugin     = "required_plugin"
	WhyTolerance  = "toleration"
	WhyCheck      = "check"
	WhyResize     = "resize"
	WhyMalformed  = "malformed"
	// WhyLate is of a review that its caller didn't wait for.
	WhyLate = "late"
)

// refusal is why a pod is not admitted.
type refusal struct{ why, message string }

// validateNew is why a new pod is refused; nil if it isn't, and what its author is warned of.
func (r *Rules) validateNew(pod *corev1.Pod) (*refusal, []string) {
	seen := kube.Pod(pod)
	asked, err := request.FromPod(seen, r.Request)
	if err != nil {
		return &refusal{WhyRequest, err.Error()}, nil
	}
	if asked == nil {
		return nil, nil
	}
	if pod.Spec.NodeName != "" && !r.AllowNodeName {
		return &refusal{WhyNodeName, fmt.Sprintf("spec.nodeName %q takes the pod past the scheduler, which alone gives GPUs: "+
			"choose the node by spec.nodeSelector (kubernetes.io/hostname) or node affinity", pod.Spec.NodeName)}, nil
	}
	if message := r.checkPrivileges(pod, seen, asked); message != "" {
		return &refusal{WhyPrivileged, message}, nil
	}
	if refused := r.requiresPlugin(pod, seen, asked); refused != nil {
		return refused, nil
	}
	if r.Check != nil {
		if err := r.Check(seen, asked); err != nil {
			return &refusal{WhyCheck, err.Error()}, nil
		}
	}
	return r.scheduler(pod.Spec.SchedulerName)
}

// scheduler is the answer to the scheduler that a pod with GPUs names.
func (r *Rules) scheduler(name string) (*refusal, []string) {
	if r.ours(name) {
		return nil, nil
	}
	message := fmt.Sprintf("the pod asks for GPUs, and its scheduler %q gives none: ", name)
	if r.ForeignSchedulers == ForeignLeave {
		return nil, []string{message + "it runs without"}
	}
	if r.SchedulerName == "" {
		return &refusal{WhyScheduler, message + "leave spec.schedulerName out"}, nil
	}
	return &refusal{WhyScheduler, message + fmt.Sprintf("leave spec.schedulerName out, or name %q", r.SchedulerName)}, nil
}

// validateChange is why an update of a pod is refused. Only what the update makes worse
// counts: a pod that is there already can be labelled and deleted, whatever it asks for.
func (r *Rules) validateChange(old, pod *corev1.Pod) *refusal {
	seen := kube.Pod(pod)
	asked, err := request.FromPod(seen, r.Request)
	before := kube.Pod(old)
	askedBefore, errBefore := request.FromPod(before, r.Request)
	switch {
	case errBefore != nil:
		return nil
	case err != nil:
		return &refusal{WhyRequest, err.Error()}
	case asked == nil || askedBefore == nil:
		return nil
	}
	if r.requiresPlugin(old, before, askedBefore) != nil {
		return nil
	}
	return r.requiresPlugin(pod, seen, asked)
}

// requiresPlugin refuses a pod whose containers NRI would create without our plugin.
func (r *Rules) requiresPlugin(pod *corev1.Pod, seen *scheduler.Pod, asked *request.Request) *refusal {
	lacks, err := requiring(pod.Annotations, withGPUs(seen, asked), r.RequiredPlugin)
	if err == nil && len(lacks) > 0 {
		err = errors.New("annotation " + requiredPlugins + " does not require it")
	}
	if err == nil {
		return nil
	}
	return &refusal{WhyPlugin, fmt.Sprintf("a container that asks for GPUs is not to be created while NRI plugin %q is away: %v. Leave the annotation as the webhook sets it",
		r.RequiredPlugin, err)}
}

// checkPrivileges returns why a pod that requests GPUs may not have its privileges; empty if it
// may.
func (r *Rules) checkPrivileges(pod *corev1.Pod, seen *scheduler.Pod, asked *request.Request) string {
	if r.AllowPrivileged || contains(r.PrivilegedNamespaces, pod.Namespace) {
		return ""
	}
	if pod.Spec.HostPID {
		return "spec.hostPID shows the pod the processes of other containers, and the audit can't tell them apart: " +
			"remove spec.hostPID, or request no GPU (the operator can allow it in a namespace: --privileged-namespace)"
	}
	for i, c := range seen.Containers {
		if asked.Containers[i].GPUs == 0 {
			continue
		}
		spec, _ := containerAt(pod, i)
		switch {
		case privileged(spec):
			return fmt.Sprintf("container %q is privileged: it has every GPU of its node, and no limits: "+
				"remove securityContext.privileged, or request no GPU", c.Name)
		case administers(spec):
			return fmt.Sprintf("container %q has the capability SYS_ADMIN: it can replace its limits and, on nodes with cgroup v1, open every GPU: "+
				"remove it from securityContext.capabilities.add, or request no GPU (the operator can allow it in a namespace: --privileged-namespace)", c.Name)
		}
	}
	return ""
}

func privileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}

// administers says whether a container has CAP_SYS_ADMIN. Runtimes ignore the case of names of
// capabilities.
func administers(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Capabilities != nil &&
		slices.ContainsFunc(c.SecurityContext.Capabilities.Add, func(name corev1.Capability) bool {
			switch strings.TrimPrefix(strings.ToUpper(string(name)), "CAP_") {
			case "SYS_ADMIN", "ALL":
				return true
			}
			return false
		})
}
