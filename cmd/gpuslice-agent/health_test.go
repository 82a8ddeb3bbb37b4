package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
