package webhook

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler/metrics"
)

// BenchmarkReview is the cost of a review without the network: a pod of one container as a ReplicaSet makes
// it, and a Binding that is refused.
func BenchmarkReview(b *testing.B) {
	for _, bc := range []struct{ name, path string }{{"create", "/mutate"}, {"create", "/validate"}, {"binding", "/validate"}} {
		b.Run(bc.name+bc.path, func(b *testing.B) {
			body, err := os.ReadFile("testdata/" + bc.name + ".json")
			require.NoError(b, err)
			handler := Handler(DefaultRules(), nil, metrics.New(), quiet)
			b.ReportAllocs()
			for b.Loop() {
				request := httptest.NewRequest(http.MethodPost, bc.path, bytes.NewReader(body))
				request.Header.Set("Content-Type", "application/json")
				handler.ServeHTTP(httptest.NewRecorder(), request)
			}
		})
	}
}
