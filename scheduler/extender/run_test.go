package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/test/loopback"
)

func gpuNode(name string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"gpuslice.io/node-gpus": register(0, 1)}}}
}

// start runs an extender until the test ends; ended has what Run returned.
func start(t *testing.T, c Config) (w *world, stop func(), ended chan error) {
	c.Engine = engine.Options{Request: request.DefaultOptions()}
	c.Listen, c.Log, c.Version = loopback.FreeAddress(t), slog.New(slog.DiscardHandler), "test"
	ctx, cancel := context.WithCancel(t.Context())
	ended = make(chan error, 1)
	go func() { ended <- Run(ctx, c) }()
	t.Cleanup(cancel)
	return &world{t: t, url: "http://" + c.Listen, nodes: []string{"n"}}, cancel, ended
}

// status is the status of a GET; 0 without a listener.
func (w *world) status(path string) (int, string) {
	response, err := http.Get(w.url + path)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	return response.StatusCode, string(body)
}

func (w *world) becomes(status int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { got, _ := w.status("/readyz"); return got == status }, time.Minute, 10*time.Millisecond)
}

func TestRun(t *testing.T) {
	quota := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "q"},
		Spec: v1.ResourceQuotaSpec{Hard: v1.ResourceList{"limits.nvidia.com/gpumem": resource.MustParse("5000")}}}
	pages := loopback.FreeAddress(t)
	w, stop, ended := start(t, Config{Client: fake.NewClientset(gpuNode("n"), quota), DebugAddress: pages})
	w.becomes(http.StatusOK)
	passed, _ := w.filter(pod("small", 4000, 0))
	require.Equal(t, w.nodes, passed)
	_, result := w.filter(pod("over", 2000, 0))
	require.Contains(t, fmt.Sprint(result.FailedNodes, result.FailedAndUnresolvableNodes), "quota")
	_, text := w.status("/metrics")
	for _, want := range []string{
		`gpuslice_scheduler_verb_duration_seconds_count{component="extender",outcome="ok",verb="filter"} 1`,
		`gpuslice_scheduler_denials_total{component="extender",reason="ResourceQuotaNotFit"} 1`,
		"gpuslice_scheduler_reserved_pods 1", "go_goroutines",
	} {
		require.Contains(t, text, want)
	}
	_, text = w.status("/debug/state")
	require.Contains(t, text, "default/small")
	_, text = w.status("/debug/state?format=json&node=n")
	require.Contains(t, text, `"phase":"reserved"`)
	debug := &world{t: t, url: "http://" + pages}
	for path, want := range map[string]string{"/debug/state": "default/small", "/": "default/small", "/metrics": "gpuslice_scheduler_reserved_pods 1"} {
		status, text := debug.status(path)
		require.Equal(t, http.StatusOK, status, path)
		require.Contains(t, text, want, path)
	}
	status, _ := debug.post("/filter", extenderv1.ExtenderArgs{Pod: pod("p", 1, 0), NodeNames: &w.nodes}, nil)
	require.Contains(t, []int{http.StatusNotFound, http.StatusMethodNotAllowed}, status, "calls are only answered at their own address")
	stop()
	require.NoError(t, <-ended)
}

// Of two replicas one answers; when it ends the other one does.
func TestOneReplicaAnswers(t *testing.T) {
	client := fake.NewClientset(gpuNode("n"))
	election := func(identity string) *Election {
		return &Election{Namespace: "kube-system", Name: "extender", Identity: identity}
	}
	first, stop, ended := start(t, Config{Client: client, Election: election("first")})
	first.becomes(http.StatusOK)
	second, _, _ := start(t, Config{Client: client, Election: election("second")})
	require.Eventually(t, func() bool { // once it knows the cluster
		status, why := second.status("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(why, errNotLeading.Error())
	}, time.Minute, 10*time.Millisecond)
	status, _ := second.post("/filter", extenderv1.ExtenderArgs{Pod: pod("p", 1, 0), NodeNames: &second.nodes}, nil)
	require.Equal(t, http.StatusServiceUnavailable, status)
	stop()
	require.NoError(t, <-ended)
	second.becomes(http.StatusOK)
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	err = Run(t.Context(), Config{Client: fake.NewClientset(), Listen: l.Addr().String(), Log: slog.New(slog.DiscardHandler),
		Engine: engine.Options{Request: request.DefaultOptions()}})
	require.ErrorContains(t, err, "address already in use")
}

func TestServeDebug(t *testing.T) {
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(t, err)
	e.SetNode(convert.Node(gpuNode("n1")))
	waits := &scheduler.Pod{UID: "u", Namespace: "ns", Name: "p", Containers: []scheduler.Container{{Name: "main", Resources: map[string]scheduler.Amount{
		"nvidia.com/gpu": {Value: 1}, "nvidia.com/gpumem": {Value: 1000},
	}}}}
	mux := http.NewServeMux()
	HandleDebug(mux, e, func(string, string) (*scheduler.Pod, error) { return waits, nil }, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	address, ended := loopback.FreeAddress(t), make(chan struct{})
	go func() { defer close(ended); ServeDebug(ctx, slog.New(slog.DiscardHandler), address, mux) }()
	get := func(path string) string {
		var response *http.Response
		require.Eventually(t, func() bool {
			var err error
			response, err = http.Get("http://" + address + path)
			return err == nil
		}, time.Minute, 10*time.Millisecond, path)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return string(text)
	}
	var explanation engine.Explanation
	require.NoError(t, json.Unmarshal([]byte(get("/debug/explain?namespace=ns&pod=p")), &explanation))
	require.Equal(t, "pending", explanation.State)
	require.Equal(t, []engine.NodeVerdict{{Node: "n1", Fits: true, Text: "fits", Score: explanation.Nodes[0].Score}}, explanation.Nodes)
	require.Contains(t, get("/debug/explain?namespace=ns"), "no pod given")
	for _, path := range []string{"/debug/state", "/"} {
		require.Contains(t, get(path), "n1", path)
	}
	cancel()
	<-ended
}

// An address in use is logged and stops nothing.
func TestServeDebugAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var logged bytes.Buffer
	ServeDebug(t.Context(), slog.New(slog.NewTextHandler(&logged, nil)), l.Addr().String(), http.NotFoundHandler())
	require.Contains(t, logged.String(), "address already in use")
}

func TestTwoElections(t *testing.T) {
	err := Run(t.Context(), Config{LeaderLease: "kube-system/kube-scheduler", Election: &Election{}})
	require.ErrorContains(t, err, "set --leader-elect=false, or leave --leader-lease out")
}
