package webhook

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Foreign is the policy for pods that request GPUs and name a foreign scheduler.
type Foreign string

// Policies for foreign schedulers.
const (
	ForeignDeny  Foreign = "deny"
	ForeignLeave Foreign = "leave" // admit with a warning: the pod runs without GPUs
)

// DefaultWriter is the scheduler's service account in install/scheduler.
const DefaultWriter = "system:serviceaccount:kube-system:gpuslice-scheduler"

// Rules are the settings of the webhook's decisions.
type Rules struct {
	Request request.Options
	// SchedulerName is set in pods with GPUs that have none or default-scheduler, the API server's
	// default. If empty, OurSchedulers must have default-scheduler.
	SchedulerName string
	// OurSchedulers also assign GPUs: profiles, or default-scheduler with plugin or extender.
	OurSchedulers     []string
	ForeignSchedulers Foreign
	// RuntimeClass is set in pods with GPUs that have none; may be empty.
	RuntimeClass string
	// RequiredPlugin is an NRI plugin without which containers with GPUs are not created; may be
	// empty.
	RequiredPlugin string
	// TaskPriority sets CUDA_TASK_PRIORITY from nvidia.com/priority, as HAMi does.
	TaskPriority bool
	// AllowPrivileged admits pods that can open all GPUs of their node, PrivilegedNamespaces only
	// in these namespaces.
	AllowPrivileged      bool
	PrivilegedNamespaces []string
	// AllowNodeName admits pods with spec.nodeName, which bypass the scheduler.
	AllowNodeName bool
	// Writers may set the scheduler's annotations.
	Writers []string
	// ToleratedNamespaces and ToleratedUsers may tolerate a missing agent.
	ToleratedNamespaces, ToleratedUsers []string
}

// DefaultRules match the manifests in install/admission.
func DefaultRules() Rules {
	return Rules{
		Request: request.DefaultOptions(), SchedulerName: "gpuslice-scheduler", ForeignSchedulers: ForeignDeny,
		RequiredPlugin: "gpuslice", TaskPriority: true, Writers: []string{DefaultWriter},
		ToleratedNamespaces: []string{metav1.NamespaceSystem}, PrivilegedNamespaces: []string{metav1.NamespaceSystem},
	}
}

func (r *Rules) Validate() error {
	var errs []error
	if r.SchedulerName == "" && !r.ours(corev1.DefaultSchedulerName) {
		errs = append(errs, fmt.Errorf("no scheduler name: set one, or add %s to our schedulers", corev1.DefaultSchedulerName))
	}
	if r.ForeignSchedulers != ForeignDeny && r.ForeignSchedulers != ForeignLeave {
		errs = append(errs, fmt.Errorf("foreign schedulers: %q: must be %s or %s", r.ForeignSchedulers, ForeignDeny, ForeignLeave))
	}
	if len(r.Writers) == 0 {
		errs = append(errs, errors.New("no user may write the scheduler's annotations: set the scheduler's user"))
	}
	return errors.Join(errs...)
}

func (r *Rules) ours(name string) bool {
	return name != "" && (name == r.SchedulerName || slices.Contains(r.OurSchedulers, name))
}

func (r *Rules) replaced(name string) bool {
	return r.SchedulerName != "" && (name == "" || name == corev1.DefaultSchedulerName && !r.ours(name))
}
