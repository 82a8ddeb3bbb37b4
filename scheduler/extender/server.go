// Package extender implements kube-scheduler's extender protocol (HTTP), for clusters where
// kube-scheduler cannot be replaced. New and Server.Handler answer the calls, Run is the process.
//
// Filter reserves the best node, because kube-scheduler binds in the background and would show
// the same free GPU to the next pod, and returns only this one, unless something else than GPUs makes nodes better for the
// pod. Bind reserves again on the node that kube-scheduler chose,
// and writes node and grant in one Binding: no pod is bound without its grant.
package extender

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/fence"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/page"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// component is a label in metrics and the prefix of reservation owners.
const component = "extender"

// DefaultReservationTimeout covers what kube-scheduler does between filter and bind.
const DefaultReservationTimeout = 30 * time.Second

const maxBody = 256 << 20 // without nodeCacheCapable: all nodes, about 20 KiB each

// Options configure a Server.
type Options struct {
	Engine  *engine.Engine
	Cluster *Cluster
	Metrics *metrics.Metrics
	Keys    *grant.SigningKeyFile // nil: unsigned grants
	// ScoreWithPreferences is percent of the priority, for pods that prefer nodes by more than GPUs; 0: all.
	ScoreWithPreferences int
	// BestNodes is how many nodes filter returns for a pod that prefers nodes by GPUs only; 0: the default.
	BestNodes int
	// Ready, Term and Find may be nil.
	Ready func() error
	// Term is for writes of grants; nil: there is no election.
	Term func(context.Context) (fence.Term, error)
	// ReservationTimeout limits the time from filter to bind; 0: the default. It is shorter than the engine's,
	// which covers a bind in progress.
	ReservationTimeout time.Duration
	// GroupTimeout limits how long a pod waits for its group in bind; 0: the default.
	GroupTimeout time.Duration
	// GroupTopology are labels of nodes, the narrowest first: see the plugin's Args.
	GroupTopology []string
	Clock         func() time.Time
	Log           *slog.Logger
	Version       string
	Find          Find
	// Objects is for plans of defragmentation; may be nil.
	Objects Objects
}

// Limits of the protocol, compared with the plugin:
//   - Pods without GPUs do not count for their group: kube-scheduler does not call the extender for them.
//   - kube-scheduler calls /preempt only for nodes where its own simulation helps. That one knows
//     nvidia.com/gpu but not memory or cores: see evicting.
//   - There are no queueing hints: see requeuer.

// Server answers the calls of kube-schedulers.
type Server struct {
	Options
	requeuer *requeuer
	groups   *groups
	evicting *evicting
	binds    binds
	tries    *tries
	// nominations wait for the end of kube-scheduler's cycle.
	nominations chan nomination
	// replaced by tests
	reserve func(pod *scheduler.Pod, r *request.Request, node, owner string) (scheduler.Placement, error)
}

// New returns a Server.
func New(o Options) *Server {
	o.ReservationTimeout = cmp.Or(o.ReservationTimeout, DefaultReservationTimeout)
	o.GroupTimeout = cmp.Or(o.GroupTimeout, DefaultGroupTimeout)
	o.ScoreWithPreferences = cmp.Or(o.ScoreWithPreferences, 100)
	o.BestNodes = cmp.Or(o.BestNodes, DefaultBestNodes)
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
	if o.Term == nil {
		o.Term = func(context.Context) (fence.Term, error) { return fence.Term{}, nil }
	}
	if o.Find == nil {
		o.Find = func(string, string) (*scheduler.Pod, error) { return nil, errors.New("the server cannot look up pods") }
	}
	reserve := func(pod *scheduler.Pod, r *request.Request, node, owner string) (scheduler.Placement, error) {
		return o.Engine.ReserveFor(o.ReservationTimeout, pod, r, node, owner)
	}
	return &Server{
		Options: o, groups: newGroups(), reserve: reserve, requeuer: newRequeuer(o.Clock), tries: newTries(o.Cluster),
		nominations: make(chan nomination, mostWaiting), evicting: newEvicting(kube.NewEvictor(o.Cluster.client, o.Engine, o.Log)),
	}
}

func owner(podUID string) string { return component + "/" + podUID }

// Run requeues pods and evicts others for them until ctx ends.
func (s *Server) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() {
		periodic.Every(ctx, evictInterval, nil, func() {
			if !s.evicting.waits(s.Clock()) { // Term may ask the API server
				return
			}
			if _, err := s.Term(ctx); err == nil {
				s.evictAll(ctx)
			}
		})
	})
	for range nominators {
		tasks.Go(func() { s.nominateAll(ctx) })
	}
	s.requeuer.run(ctx, func(ctx context.Context, pod *v1.Pod) {
		if _, err := s.Term(ctx); err != nil {
			return
		}
		if err := kube.Requeue(ctx, s.Cluster.client, pod, time.Now()); err != nil {
			s.Log.Info("failed to requeue pod", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		}
	})
}

// Handler returns the handler of all paths, gpu-admission's (/scheduler/...) included.
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
	mux.HandleFunc("GET /healthz", httpserver.Check(nil))
	mux.HandleFunc("GET /readyz", httpserver.Check(s.Ready))
	HandleDebug(mux, s.Engine, s.Find, s.Objects, s.Ready)
	return mux
}

// call answers 400 to a malformed call and 503 before Ready. Errors of a pod are part of the
// answer.
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
			http.Error(w, fmt.Sprintf("%s: malformed call: %v", verb, err), http.StatusBadRequest)
			return
		}
		result, err := answer(r.Context(), &args)
		s.Metrics.Observe(component, verb, began, err)
		if err != nil {
			s.Log.Debug("call failed", "verb", verb, "error", err)
		}
		text, err := json.Marshal(result)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		// kube-scheduler reads no further than the JSON value: without the length, and with a newline, it would not use the
		// connection again.
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		if _, err := w.Write(text); err != nil {
			s.Log.Debug("failed to write the answer", "verb", verb, "error", err)
		}
	})
}

func decode(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the JSON value")
	}
	return nil
}

// Find returns the pod of that name, or a NotFound error of the API server.
type Find func(namespace, name string) (*scheduler.Pod, error)

// HandleDebug registers /, /debug/state, /debug/explain and, with objects, /debug/defrag, read-only and with limited
// concurrency.
func HandleDebug(mux *http.ServeMux, e *engine.Engine, find Find, objects Objects, ready func() error) {
	limited := func(pattern string, h http.Handler) { mux.Handle(pattern, httpserver.Few(httpserver.InFlight, h)) }
	limited("GET /debug/state", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { debugState(e, w, r) }))
	limited("GET /debug/explain", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { debugExplain(e, find, w, r) }))
	if objects != nil {
		limited("GET /debug/defrag", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { debugDefrag(e, find, objects, w, r) }))
	}
	limited("GET /{$}", page.Handler(e, ready))
}

// debugState supports ?node=NAME and ?format=json.
func debugState(e *engine.Engine, w http.ResponseWriter, r *http.Request) {
	state := e.State(r.URL.Query().Get("node"))
	if r.URL.Query().Get("format") == "json" {
		writeJSON(w, state)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = state.WriteText(w)
}

func debugExplain(e *engine.Engine, find Find, w http.ResponseWriter, r *http.Request) {
	namespace, name := r.URL.Query().Get("namespace"), r.URL.Query().Get("pod")
	if namespace == "" || name == "" {
		http.Error(w, "no pod given: use /debug/explain?namespace=NAMESPACE&pod=POD", http.StatusBadRequest)
		return
	}
	pod, err := find(namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		http.Error(w, fmt.Sprintf("pod %s/%s not found among pending and running pods", namespace, name), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		writeJSON(w, e.Explain(pod))
	}
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // fails if the client is gone
}

// ServeDebug serves at address, if any, until ctx ends. Errors are only logged.
func ServeDebug(ctx context.Context, log *slog.Logger, address string, handler http.Handler) {
	if address == "" {
		return
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		log.Error("failed to serve the debug address", "address", address, "error", err)
		return
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(httpserver.Limit(listener, httpserver.Connections)); !errors.Is(err, http.ErrServerClosed) {
		log.Error("the debug address is no longer served", "address", address, "error", err)
	}
}
