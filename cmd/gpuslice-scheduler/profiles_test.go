package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProfilesFollowTheConfiguration is of enableProfiling, which is known only after the server's start.
func TestProfilesFollowTheConfiguration(t *testing.T) {
	enabled := false
	h := profiles(func() bool { return enabled })
	get := func() int {
		r := httptest.NewRequest(http.MethodGet, "/debug/pprof/heap", nil)
		r.RemoteAddr = "127.0.0.1:1000"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	require.Equal(t, http.StatusForbidden, get())
	enabled = true
	require.Equal(t, http.StatusOK, get())
}
