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
	ReasonMalformed  = "malformed"
	ReasonLate       = "late" // the API server's timeout ended
)

type rejection struct{ reason, message string }

func (r *Rules) validateNew(pod *corev1.Pod) (*rejection, []string) {
	model := kube.Pod(pod)
	req, err := request.FromPod(model, r.Request)
	if err != nil {
		return &rejection{ReasonRequest, err.Error()}, nil
	}
	if req == nil {
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
	return r.scheduler(pod.Spec.SchedulerName)
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
	model := kube.Pod(pod)
	req, err := request.FromPod(model, r.Request)
	oldModel := kube.Pod(old)
	oldReq, oldErr := request.FromPod(oldModel, r.Request)
	switch {
	case oldErr != nil:
		return nil
	case err != nil:
		return &rejection{ReasonRequest, err.Error()}
	case req == nil || oldReq == nil:
		return nil
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
