package httpserver

import (
	"net/http"
	"net/http/pprof"
	"net/netip"
)

// HandleProfiles registers Go's profiles at /debug/pprof/, for connections of the same network namespace only, such as
// those of kubectl port-forward: a profile costs processor time and shows the program's inside.
func HandleProfiles(mux *http.ServeMux) {
	for path, h := range map[string]http.HandlerFunc{"": pprof.Index, "profile": pprof.Profile, "trace": pprof.Trace} {
		mux.Handle("GET /debug/pprof/"+path, local(Few(1, h)))
	}
}

func local(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "profiles are only for clients at a loopback address: use kubectl port-forward", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}
