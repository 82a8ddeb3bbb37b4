package httpserver_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/httpserver"
)

func TestProfiles(t *testing.T) {
	mux := http.NewServeMux()
	httpserver.HandleProfiles(mux)
	server := httptest.NewServer(mux)
	defer server.Close()
	for path, want := range map[string]string{"": "goroutine", "goroutine?debug=1": "goroutine profile: total", "heap": "\x1f\x8b", "trace?seconds=0.01": "go 1."} {
		answer, err := http.Get(server.URL + "/debug/pprof/" + path)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusOK, answer.StatusCode, path)
		require.Contains(t, string(body), want, path)
	}
	ask := func(from string) int {
		r := httptest.NewRequest(http.MethodGet, "/debug/pprof/heap", nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Code
	}
	for _, from := range []string{"127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"} {
		require.Equal(t, http.StatusOK, ask(from), from)
	}
	for _, from := range []string{"10.0.0.7:1", "[fd00::1]:1", "", "@"} {
		require.Equal(t, http.StatusForbidden, ask(from), from)
	}
}
