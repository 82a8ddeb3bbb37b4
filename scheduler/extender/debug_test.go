package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

func TestServeDebug(t *testing.T) {
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(t, err)
	e.SetNode(kube.Node(gpuNode("n1")))
	waits := &scheduler.Pod{UID: "u", Namespace: "ns", Name: "p", Containers: []scheduler.Container{{Name: "main", Resources: map[string]scheduler.Amount{
		"nvidia.com/gpu": {Value: 1}, "nvidia.com/gpumem": {Value: 1000},
	}}}}
	mux := http.NewServeMux()
	HandleDebug(mux, e, func(string, string) (*scheduler.Pod, error) { return waits, nil }, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	address, ended := freePort(t), make(chan struct{})
	go func() { defer close(ended); ServeDebug(ctx, slog.New(slog.DiscardHandler), address, mux) }()
	get := func(path string) string {
		var response *http.Response
		require.Eventually(t, func() bool {
			var err error
			response, err = http.Get("http://" + address + path)
			return err == nil
		}, 10*time.Second, 10*time.Millisecond, path)
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
