package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	schedmetrics "github.com/gpuslice/gpuslice/scheduler/metrics"
)

const (
	// maxBody bounds a review: two pods (an update's) of the 3 MiB that the API server reads, and some.
	maxBody = 8 << 20
	// maxAtOnce bounds how many reviews are read at a time, and so the memory that they take.
	maxAtOnce = 16
	// longest is how long a review may take, waiting for its turn included: the API server waits no longer
	// for any webhook.
	longest = 30 * time.Second
)

// Outcomes of a review.
const (
	OutcomeAllowed = "allowed"
	OutcomePatched = "patched"
	OutcomeDenied  = "denied"
	// OutcomeError is no review, or one that can't be read.
	OutcomeError = "error"
)

// Metrics is told of every review. Path is /mutate or /validate, outcome one of the above, why
// one of the reasons to deny or empty.
type Metrics interface {
	Reviewed(path, outcome, why string, took time.Duration)
}

// Handler answers at /mutate, /validate, /healthz and /readyz. Rules are valid (Rules.Validate); ready
// and metrics may be nil.
func Handler(rules Rules, ready func() error, metrics Metrics, log *slog.Logger) http.Handler {
	if metrics == nil {
		metrics = schedmetrics.New()
	}
	mux := http.NewServeMux()
	slots := make(chan struct{}, maxAtOnce)
	for path, decide := range map[string]func(*admissionv1.AdmissionRequest) answer{
		"/mutate": rules.answerMutate, "/validate": rules.answerValidate,
	} {
		mux.Handle("POST "+path, &reviewer{path: path, decide: decide, slots: slots, metrics: metrics, log: log})
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if ready != nil {
			if err := ready(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// reviewer answers reviews of one path.
type reviewer struct {
	path    string
	decide  func(*admissionv1.AdmissionRequest) answer
	slots   chan struct{}
	metrics Metrics
	log     *slog.Logger
}

func (v *reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), patience(r))
	defer cancel()
	select {
	case v.slots <- struct{}{}:
		defer func() { <-v.slots }()
	case <-ctx.Done():
		v.late(w, 0)
		return
	}
	began := time.Now()
	request, status, err := read(w, r)
	if err != nil {
		v.metrics.Reviewed(v.path, OutcomeError, WhyMalformed, time.Since(began))
		v.log.Warn("no review", "path", v.path, "error", err)
		http.Error(w, err.Error(), status)
		return
	}
	if ctx.Err() != nil { // whoever asked has gone: others wait for the slot
		v.late(w, time.Since(began))
		return
	}
	a := v.decide(request)
	data, err := a.encode(request)
	if err != nil {
		v.metrics.Reviewed(v.path, OutcomeError, WhyMalformed, time.Since(began))
		v.log.Error("review", "path", v.path, "error", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(data); err != nil {
		v.log.Warn("write the answer", "path", v.path, "error", err)
	}
	v.done(request, a, time.Since(began))
}

// patience is how long the caller waits for the answer. The API server says it in its call.
func patience(r *http.Request) time.Duration {
	if says, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil && says > 0 {
		return min(says, longest)
	}
	return longest
}

// late is for a caller that waits no more.
func (v *reviewer) late(w http.ResponseWriter, took time.Duration) {
	v.metrics.Reviewed(v.path, OutcomeError, WhyLate, took)
	http.Error(w, "the review came too late to its turn: the webhook has too much to do", http.StatusServiceUnavailable)
}

// done tells of an answer.
func (v *reviewer) done(request *admissionv1.AdmissionRequest, a answer, took time.Duration) {
	switch {
	case a.refusal != nil:
		v.metrics.Reviewed(v.path, OutcomeDenied, a.refusal.why, took)
		v.log.Info("denied", "pod", request.Namespace+"/"+request.Name, "user", request.UserInfo.Username,
			"operation", request.Operation, "resource", request.Resource.Resource, "subresource", request.SubResource,
			"why", a.refusal.why, "message", a.refusal.message)
	case len(a.patch) > 0:
		v.metrics.Reviewed(v.path, OutcomePatched, "", took)
	default:
		v.metrics.Reviewed(v.path, OutcomeAllowed, "", took)
	}
}

// read is the review of a request, or the HTTP status that says why there is none.
func read(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionRequest, int, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, http.StatusUnsupportedMediaType, fmt.Errorf("content type %.64q: only application/json is read", r.Header.Get("Content-Type"))
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
