package extender

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// kube-scheduler reads an answer up to the end of its JSON value, and closes it then: a connection is used again only if the end of the
// answer was read with it.
func TestConnectionsAreKept(t *testing.T) {
	w := newWorld(t, 1, 1)
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(w.server.Handler())
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("node-%04d", i)
	}
	for i := range 10 {
		body, err := json.Marshal(extenderv1.ExtenderArgs{Pod: pod(fmt.Sprint("p", i), 8000, 10), NodeNames: &names})
		require.NoError(t, err)
		response, err := http.Post(server.URL+"/filter", "application/json", bytes.NewReader(body))
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode)
		var result extenderv1.ExtenderFilterResult
		require.NoError(t, json.NewDecoder(response.Body).Decode(&result))
		require.NoError(t, response.Body.Close())
		require.Len(t, result.FailedAndUnresolvableNodes, len(names), "each has a reason: it is not known")
	}
	require.EqualValues(t, 1, connections.Load())
}
