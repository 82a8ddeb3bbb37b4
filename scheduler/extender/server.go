package extender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// component is the label in metrics and the prefix of reservation owners.
const component = "extender"

// DefaultHold is how long filter's reservation waits for a bind: kube-scheduler's own time for
// what lies between, with room for a slow webhook or volume.
const DefaultHold = 30 * time.Second

// maxBody bounds a call: a kube-scheduler whose extender is not nodeCacheCapable sends
// all nodes as objects, 20 KiB each.
const maxBody = 256 << 20

// Cluster is what is asked and told of pods: the informers' cache and the API server.
type Cluster interface {
	// Pod is a pod that waits to be bound. It is a NotFound error of the API server's if
	// there is none of that UID.
	Pod(ctx context.Context, namespace, name string, uid types.UID) (*v1.Pod, error)
	// Bound is how many pods of a group are bound already.
	Bound(namespace, group string) int
	// Lower are the pods of less than that priority by their nodes, the most important
	// first: of the highest priority, and of equals the oldest.
	Lower(priority int32) map[string][]*v1.Pod
	// Budgets are those that say how many pods may be evicted.
	Budgets() []*policyv1.PodDisruptionBudget
	// Nominated are the pods that wait for their victims to end, by the nodes that were cleared for them.
	Nominated() map[string][]*v1.Pod
	// Wake changes a pod that waits, so that kube-scheduler tries it again.
	Wake(ctx context.Context, pod *v1.Pod) error
	// Bind binds it, and writes the annotations in the same step.
	Bind(ctx context.Context, pod *v1.Pod, node string, annotations map[string]string) error
}

// Options are a server's.
type Options struct {
	Engine  *engine.Engine
	Cluster Cluster
	Metrics *metrics.Metrics
	// Ready is nil once the state of the cluster is known.
	Ready func() error
	// Key signs grants; nil: they are not signed.
	Key func() *grant.SigningKey
	// Hold is how long filter's reservation waits; DefaultHold where it is 0.
	Hold time.Duration
	// GangTimeout is how long a pod of a group waits for the others; DefaultGangTimeout
	// where it is 0.
	GangTimeout time.Duration
	Clock       func() time.Time
	Log         *slog.Logger
	// Version is answered by /version.
	Version string
	// Find finds pods for /debug/explain; nil: it explains none.
	Find Find
}

// Server answers a kube-scheduler's calls. It may be used by several.
type Server struct {
	Options
	holds *holds
	gangs *gangs
	// reserve is the engine's.
	reserve  func(pod *scheduler.Pod, r *request.Request, node, owner string) (scheduler.Placement, error)
	refusals *refusals
}

// New is a server that runs nothing yet.
func New(o Options) *Server {
	if o.Hold <= 0 {
		o.Hold = DefaultHold
	}
	if o.GangTimeout <= 0 {
		o.GangTimeout = DefaultGangTimeout
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = metrics.New()
	}
	if o.Ready == nil {
		o.Ready = func() error { return nil }
	}
	if o.Key == nil {
		o.Key = func() *grant.SigningKey { return nil }
	}
	s := &Server{Options: o, gangs: newGangs(), reserve: o.Engine.Reserve, refusals: newRefusals(o.Clock)}
	s.holds = newHolds(o.Hold, func(podUID string) { o.Engine.Unreserve(podUID, owner(podUID)) })
	return s
}

// owner is the owner of a pod's reservation.
func owner(podUID string) string { return component + "/" + podUID }

// Run gives back reservations that nobody has bound in time, and wakes pods that were refused
// too early, until ctx ends.
func (s *Server) Run(ctx context.Context) {
	go s.refusals.run(ctx, func(ctx context.Context, pod *v1.Pod) {
		if err := s.Cluster.Wake(ctx, pod); err != nil { // it is tried again all the same, later
			s.Log.Info("not woken", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		}
	})
	s.holds.run(ctx)
}

// Handler is the calls.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, path := range []string{"/filter", "/scheduler/predicates"} {
		mux.Handle("POST "+path, call(s, "filter", s.filter))
	}
	mux.Handle("POST /filter-dryrun", call(s, "filter-dryrun", s.dryRun))
	for _, path := range []string{"/prioritize", "/scheduler/priorities"} {
		mux.Handle("POST "+path, call(s, "prioritize", s.prioritize))
	}
	mux.Handle("POST /bind", call(s, "bind", s.bind))
	mux.Handle("POST /preempt", call(s, "preempt", s.preempt))
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.Version) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	Pages(mux, s.Engine, s.find, s.Ready)
	return mux
}

// call is a handler that decodes a call and encodes its answer. A call that can't be read
// is a 400, one that comes too early a 503; what is wrong with a pod is in the answer, as
// the protocol has it.
func call[Args, Answer any](s *Server, verb string, answer func(context.Context, *Args) (Answer, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		if err := s.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		var args Args
		if err := decode(w, r, &args); err != nil {
			s.Metrics.Observe(component, verb, began, err)
			http.Error(w, fmt.Sprintf("%s: the call can't be read: %v", verb, err), http.StatusBadRequest)
			return
		}
		result, err := answer(r.Context(), &args)
		s.Metrics.Observe(component, verb, began, err)
		if err != nil {
			s.Log.Debug("refused", "verb", verb, "error", err)
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(result); err != nil {
			s.Log.Debug("the answer was not taken", "verb", verb, "error", err)
		}
	})
}

// decode reads one JSON value and nothing after it.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something after the JSON value")
	}
	return nil
}
