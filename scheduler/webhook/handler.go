// Package webhook is an admission webhook. /mutate adds what pods with GPUs need; /validate rejects pods that
// cannot run as written, and forged annotations of the scheduler.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

const (
	maxBody       = 8 << 20 // an update has two pods of up to 3 MiB
	maxConcurrent = 16
	maxTimeout    = 30 * time.Second // the API server's limit
)

const (
	OutcomeAllowed = "allowed"
	OutcomePatched = "patched"
	OutcomeDenied  = "denied"
	OutcomeError   = "error" // no valid review
)

// Handler serves /mutate, /validate, /healthz and /readyz. templates may be nil without rules.ClaimNamespaces; ready may be nil.
func Handler(rules Rules, templates Templates, ready func() error, counters *metrics.Metrics, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	places := make(chan struct{}, maxConcurrent)
	for path, decide := range map[string]func(context.Context, *admissionv1.AdmissionRequest) answer{
		"/mutate": mutator{rules, templates}.answer,
		"/validate": func(_ context.Context, request *admissionv1.AdmissionRequest) answer {
			return rules.answerValidate(request)
		},
	} {
		mux.Handle("POST "+path, &reviewer{path: path, decide: decide, places: places, metrics: counters, log: log})
	}
	mux.HandleFunc("GET /healthz", httpserver.Check(nil))
	mux.HandleFunc("GET /readyz", httpserver.Check(ready))
	return mux
}

type reviewer struct {
	path    string
	decide  func(context.Context, *admissionv1.AdmissionRequest) answer
	places  chan struct{}
	metrics *metrics.Metrics
	log     *slog.Logger
}

func (v *reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), timeout(r))
	defer cancel()
	select {
	case v.places <- struct{}{}:
		defer func() { <-v.places }()
	case <-ctx.Done():
		v.late(w, 0)
		return
	}
	began := time.Now()
	request, status, err := read(w, r)
	if err != nil {
		v.metrics.Reviewed(v.path, OutcomeError, ReasonMalformed, time.Since(began))
		v.log.Warn("failed to read a review", "path", v.path, "error", err)
		http.Error(w, err.Error(), status)
		return
	}
	if ctx.Err() != nil { // the client is gone, and others wait for the place
		v.late(w, time.Since(began))
		return
	}
	a := v.decide(ctx, request)
	data, err := a.encode(request)
	if err != nil {
		v.metrics.Reviewed(v.path, OutcomeError, ReasonMalformed, time.Since(began))
		v.log.Error("failed to encode a review", "path", v.path, "error", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(data); err != nil {
		v.log.Warn("failed to write a review", "path", v.path, "error", err)
	}
	v.done(request, a, time.Since(began))
}

// timeout is set by the API server.
func timeout(r *http.Request) time.Duration {
	if d, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil && d > 0 {
		return min(d, maxTimeout)
	}
	return maxTimeout
}

func (v *reviewer) late(w http.ResponseWriter, took time.Duration) {
	v.metrics.Reviewed(v.path, OutcomeError, ReasonLate, took)
	http.Error(w, "the webhook is overloaded: timeout before the review was read", http.StatusServiceUnavailable)
}

func (v *reviewer) done(request *admissionv1.AdmissionRequest, a answer, took time.Duration) {
	switch {
	case a.rejection != nil:
		v.metrics.Reviewed(v.path, OutcomeDenied, a.rejection.reason, took)
		v.log.Info("review denied", "pod", request.Namespace+"/"+request.Name, "user", request.UserInfo.Username,
			"operation", request.Operation, "resource", request.Resource.Resource, "subresource", request.SubResource,
			"reason", a.rejection.reason, "message", a.rejection.message)
	case len(a.patch) > 0:
		v.metrics.Reviewed(v.path, OutcomePatched, "", took)
	default:
		v.metrics.Reviewed(v.path, OutcomeAllowed, "", took)
	}
}

func read(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionRequest, int, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, http.StatusUnsupportedMediaType, fmt.Errorf("unsupported content type %.64q: use application/json",
			r.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the review is larger than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("read the request: %w", err)
	}
	request, err := decodeReview(body)
	if err != nil {
		return nil, http.StatusBadRequest, err
	}
	return request, 0, nil
}

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
	// PriorityNamespaces have pods that may request priority on a GPU ("*": all). Nodes ignore it in others: a warning.
	PriorityNamespaces []string
	// AllowPrivileged admits pods that can open all GPUs of their node, PrivilegedNamespaces only
	// in these namespaces.
	AllowPrivileged      bool
	PrivilegedNamespaces []string
	// AllowNodeName admits pods with spec.nodeName, which bypass the scheduler.
	AllowNodeName bool
	// ClaimNamespaces have pods of which the requests become ResourceClaims, for any scheduler ("*": all).
	ClaimNamespaces []string
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
