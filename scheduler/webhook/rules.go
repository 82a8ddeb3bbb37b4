package webhook

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Foreign is what becomes of a pod that asks for GPUs and names a scheduler that isn't ours.
type Foreign string

// The answers.
const (
	// ForeignDeny refuses it: no other scheduler gives GPUs, so that it would run without.
	ForeignDeny Foreign = "deny"
	// ForeignLeave lets it be, with a warning.
	ForeignLeave Foreign = "leave"
)

// DefaultWriter is the identity that install/scheduler's manifests run the scheduler under.
const DefaultWriter = "system:serviceaccount:kube-system:gpuslice-scheduler"

// Rules are the cluster's settings.
type Rules struct {
	Request request.Options
	// SchedulerName is written into pods that ask for GPUs and name no scheduler (or
	// default-scheduler, which is the same to the API server). Empty: none is written, and
	// default-scheduler must be one of OurSchedulers.
	SchedulerName string
	// OurSchedulers are others that give GPUs: further profiles, or default-scheduler where
	// it has the plugin or the extender. Pods that name one are left with it.
	OurSchedulers []string
	// ForeignSchedulers is for pods that name any other.
	ForeignSchedulers Foreign
	// RuntimeClass is set where a pod that asks for GPUs names none. Empty: none is.
	RuntimeClass string
	// RequiredPlugin is the name of the NRI plugin without which a pod's containers are not
	// to be created. Empty: none is required.
	RequiredPlugin string
	// TaskPriority sets CUDA_TASK_PRIORITY by the resource nvidia.com/priority, as HAMi does.
	TaskPriority bool
	// AllowPrivileged admits GPU requests of containers that can open all GPUs of the node: that
	// are privileged, have CAP_SYS_ADMIN, or are in a pod with hostPID.
	AllowPrivileged bool
	// PrivilegedNamespaces are namespaces in which such requests are admitted.
	PrivilegedNamespaces []string
	// AllowNodeName lets a pod ask for GPUs that goes to its node past the scheduler.
	AllowNodeName bool
	// Writers are the users that may write the scheduler's annotations.
	Writers []string
	// ToleratedNamespaces and ToleratedUsers are whose pods may tolerate that the agent is away.
	ToleratedNamespaces, ToleratedUsers []string
	// Check is a further reason to refuse a new pod, a quota's say. Nil: none.
	Check func(*scheduler.Pod, *request.Request) error
}

// DefaultRules are what the manifests in install/admission go with.
func DefaultRules() Rules {
	return Rules{
		Request: request.DefaultOptions(), SchedulerName: "gpuslice-scheduler", ForeignSchedulers: ForeignDeny,
		RequiredPlugin: "gpuslice", TaskPriority: true, Writers: []string{DefaultWriter},
		ToleratedNamespaces: []string{metav1.NamespaceSystem}, PrivilegedNamespaces: []string{metav1.NamespaceSystem},
	}
}

// Validate says what of the rules makes no sense.
func (r *Rules) Validate() error {
	var errs []error
	if r.SchedulerName == "" && !r.ours(corev1.DefaultSchedulerName) {
		errs = append(errs, fmt.Errorf("no scheduler name to write into pods, and %s is none of ours: name one of them", corev1.DefaultSchedulerName))
	}
	if r.ForeignSchedulers != ForeignDeny && r.ForeignSchedulers != ForeignLeave {
		errs = append(errs, fmt.Errorf("foreign schedulers: %q: must be %s or %s", r.ForeignSchedulers, ForeignDeny, ForeignLeave))
	}
	if len(r.Writers) == 0 {
		errs = append(errs, errors.New("nobody may write the scheduler's annotations: name the scheduler's user"))
	}
	return errors.Join(errs...)
}

// ours says whether a scheduler gives GPUs.
func (r *Rules) ours(name string) bool {
	return name != "" && (name == r.SchedulerName || contains(r.OurSchedulers, name))
}

// replaced says whether a pod's scheduler is to become ours: it names none.
func (r *Rules) replaced(name string) bool {
	return r.SchedulerName != "" && (name == "" || name == corev1.DefaultSchedulerName && !r.ours(name))
}
