package extender

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// FuzzCalls: whatever is posted to the verbs, there is an answer, and what can't be read
// reserves nothing.
func FuzzCalls(f *testing.F) {
	for _, body := range []string{
		`{"Pod":{"metadata":{"name":"a","namespace":"b","uid":"c"},"spec":{"containers":[{"name":"m","resources":{"limits":{"nvidia.com/gpu":"1"}}}]}},"NodeNames":["node-00","x"]}`,
		`{"Pod":null,"Nodes":{"items":[{"metadata":{"name":"node-00"}}]},"NodeNames":null}`,
		`{"PodName":"a","PodNamespace":"b","PodUID":"c","Node":"node-00"}`,
		`{"Pod":{},"NodeNameToVictims":{"node-00":{"Pods":[null]}},"NodeNameToMetaVictims":{"x":null}}`,
		`{} {}`, `null`, ``,
	} {
		f.Add([]byte(body))
	}
	cluster := newCluster(f, nil)
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
		require.NoError(t, err)
		handler := New(Options{Engine: e, Cluster: cluster.Cluster, Version: "fuzz"}).Handler()
		for _, verb := range []string{"filter", "filter-dryrun", "prioritize", "bind", "preempt"} {
			r := httptest.NewRequest(http.MethodPost, "/"+verb, bytes.NewReader(body))
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			answer, err := io.ReadAll(w.Body)
			require.NoError(t, err)
			require.Contains(t, []int{http.StatusOK, http.StatusBadRequest}, w.Code, "%s: %s", verb, answer)
			require.NotEmpty(t, answer)
		}
	})
}
