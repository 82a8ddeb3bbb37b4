package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
)

func TestHealthServer(t *testing.T) {
	good := condition{"good", func() error { return nil }}
	bad := condition{"nri", func() error { return errors.New("not connected") }}
	worse := condition{"gpus", func() error { return errors.New("driver gone") }}
	for _, test := range []struct {
		description string
		live, ready []condition
		method      string
		path        string
		want        int
		body        string
	}{
		{"live and ready", []condition{good}, []condition{good}, "GET", "/readyz", 200, "ok\n"},
		{"live, not ready", []condition{good}, []condition{good, bad}, "GET", "/healthz", 200, "ok\n"},
		{"not ready, with the reason", []condition{good}, []condition{good, bad}, "GET", "/readyz", 503, "nri: not connected\n"},
		{"not ready, with every reason", nil, []condition{bad, worse}, "GET", "/readyz", 503, "nri: not connected\ngpus: driver gone\n"},
		{"not live", []condition{worse}, nil, "GET", "/healthz", 503, "gpus: driver gone\n"},
		{"HEAD", nil, []condition{bad}, "HEAD", "/readyz", 503, "nri: not connected\n"},
		{"another method", nil, nil, "POST", "/healthz", 405, "Method Not Allowed\n"},
		{"something else", nil, nil, "GET", "/", 404, "404 page not found\n"},
	} {
		t.Run(test.description, func(t *testing.T) {
			w := httptest.NewRecorder()
			healthServer(test.live, test.ready).ServeHTTP(w, httptest.NewRequest(test.method, test.path, nil))
			assert.Equal(t, test.want, w.Code)
			assert.Equal(t, test.body, w.Body.String())
		})
	}
}

func TestServerTimeouts(t *testing.T) {
	for _, s := range []*http.Server{newServer(http.NotFoundHandler()), newHealthServer(http.NotFoundHandler())} {
		assert.NotNil(t, s.Handler)
		for what, limit := range map[string]time.Duration{
			"a client that sends nothing": s.ReadHeaderTimeout, "one that never ends": s.ReadTimeout, "one that reads nothing": s.WriteTimeout, "one that stays": s.IdleTimeout,
		} {
			assert.Positive(t, limit, what)
		}
	}
}

// counted is a listener that knows how many of its connections are open.
type counted struct {
	net.Listener
	open, most atomic.Int64
}

type countedConn struct {
	net.Conn
	in     *counted
	closed sync.Once
}

func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.most.Store(max(c.most.Load(), c.open.Add(1)))
	return &countedConn{Conn: conn, in: c}, nil
}

func (c *countedConn) Close() error {
	c.closed.Do(func() { c.in.open.Add(-1) })
	return c.Conn.Close()
}

// Idle connections do not block the kubelet, and their number is limited; each connection gets one response.
func TestHealthIsAnsweredWhateverTenantsHold(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	listener := &counted{Listener: l}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveHealth(ctx, listener, healthServer(nil, nil)) }()
	probe := func() {
		client := http.Client{Transport: &http.Transport{}}
		response, err := client.Get("http://" + l.Addr().String() + "/readyz")
		require.NoError(t, err)
		defer response.Body.Close()
		assert.Equal(t, http.StatusOK, response.StatusCode)
		assert.True(t, response.Close, "the connection ends with its answer")
	}
	probe()
	for range 2 {
		for range 2 * healthConnections {
			c, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			defer c.Close()
		}
		probe()
	}
	// One is closed when another is there already.
	assert.LessOrEqual(t, listener.most.Load(), int64(healthConnections+1))
	cancel()
	require.NoError(t, <-ended)
}

// The agent reports whether the barrier is in front of NVIDIA's runtime, if that gave it its GPUs.
func TestMissingBarrierIsReported(t *testing.T) {
	const none = -1
	for _, test := range []struct {
		description string
		env         map[string]string
		metric      float64
		warns       bool
	}{
		{"no NVIDIA runtime", nil, none, false},
		{"only NVIDIA's runtime", map[string]string{api.EnvVisibleDevices: "all"}, 0, true},
		{"behind gpuslice-runtime", map[string]string{api.EnvVisibleDevices: "all", ociruntime.BarrierEnv: "1"}, 1, false},
		{"behind gpuslice-runtime, by CDI", map[string]string{api.EnvVisibleDevices: "void", ociruntime.BarrierEnv: "1"}, 1, false},
	} {
		var log bytes.Buffer
		registry := prometheus.NewPedanticRegistry()
		reportBarrier(func(name string) string { return test.env[name] }, registry, slog.New(slog.NewTextHandler(&log, nil)))
		assert.Equal(t, test.warns, strings.Contains(log.String(), "gpuslice install containerd"), test.description)
		if test.metric == none {
			count, err := testutil.GatherAndCount(registry)
			assert.NoError(t, err)
			assert.Zero(t, count, test.description)
			continue
		}
		families, err := registry.Gather()
		assert.NoError(t, err)
		if assert.Len(t, families, 1, test.description) {
			assert.Equal(t, test.metric, families[0].Metric[0].Gauge.GetValue(), test.description)
		}
	}
}

func TestHealthFailsWhenALoopHangs(t *testing.T) {
	now := time.Unix(1000, 0)
	w := newWatchdog()
	w.now = func() time.Time { return now }
	cores, audit := w.loop("cores", 3*time.Second), w.loop("audit", time.Hour)
	now = now.Add(24 * time.Hour)
	assert.NoError(t, w.failure(), "no loop has started")

	cores.tick()
	audit.tick()
	now = now.Add(stuckAfter + 3*time.Second)
	assert.NoError(t, w.failure())
	now = now.Add(time.Second)
	assert.EqualError(t, w.failure(), `the loop "cores" has made no progress for 1m4s`)
	cores.tick()
	assert.NoError(t, w.failure())

	done := cores.waitForNVML()
	now = now.Add(stuckAfter * 2)
	assert.NoError(t, w.failure(), "the driver hangs, and a restart does not help")
	done()
	assert.NoError(t, w.failure())
	now = now.Add(stuckAfter * 2)
	assert.Error(t, w.failure())
}
