package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestHealthServer(t *testing.T) {
	good := condition{"good", func() error { return nil }}
	bad := condition{"nri", func() error { return errors.New("not connected") }}
	worse := condition{"cards", func() error { return errors.New("driver gone") }}
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
		{"not ready, with every reason", nil, []condition{bad, worse}, "GET", "/readyz", 503, "nri: not connected\ncards: driver gone\n"},
		{"not live", []condition{worse}, nil, "GET", "/healthz", 503, "cards: driver gone\n"},
		{"a look at the head", nil, []condition{bad}, "HEAD", "/readyz", 503, "nri: not connected\n"},
		{"not asked but told", nil, nil, "POST", "/healthz", 405, "Method Not Allowed\n"},
		{"something else", nil, nil, "GET", "/", 404, "404 page not found\n"},
	} {
		t.Run(test.description, func(t *testing.T) {
			w := httptest.NewRecorder()
			healthServer(test.live, test.ready).ServeHTTP(w, httptest.NewRequest(test.method, test.path, http.NoBody))
			assert.Equal(t, test.want, w.Code)
			assert.Equal(t, test.body, w.Body.String())
		})
	}
}

func TestNobodyHoldsTheServer(t *testing.T) {
	s := newServer(http.NotFoundHandler())
	assert.NotNil(t, s.Handler)
	for what, limit := range map[string]time.Duration{
		"a client that says nothing": s.ReadHeaderTimeout, "one that never ends": s.ReadTimeout, "one that reads nothing": s.WriteTimeout, "one that stays": s.IdleTimeout,
	} {
		assert.Positive(t, limit, what)
	}
}
