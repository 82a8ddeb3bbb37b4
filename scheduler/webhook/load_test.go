package webhook

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler/metrics"
)

// TestListIsParsedOnce: not again for each container that goes by it.
func TestListIsParsedOnce(t *testing.T) {
	list := "[" + strings.Repeat("a,", maxRequired/2-20) + "gpuslice]"
	reads := func(containers int) float64 {
		names := make([]string, containers)
		for i := range names {
			names[i] = fmt.Sprint("c", i)
		}
		annotations := map[string]string{requiredPlugins: list}
		return testing.AllocsPerRun(2, func() {
			lacks, err := missingRequirements(annotations, names, "gpuslice")
			require.NoError(t, err)
			require.Empty(t, lacks)
		})
	}
	require.Less(t, reads(200), 2*reads(1))
}

// TestLongListIsRejected: long ones are refused before they are read.
func TestLongListIsRejected(t *testing.T) {
	long := "[" + strings.Repeat("a,", maxRequired) + "gpuslice]"
	_, err := missingRequirements(map[string]string{requiredPlugins: long}, []string{"main"}, "gpuslice")
	require.EqualError(t, err, fmt.Sprintf("annotation %s: %d bytes are more than the maximum of %d", requiredPlugins, len(long), maxRequired))
}

// TestLateReview: nothing is done for a caller that has gone, whether it waits for its turn or has it.
func TestLateReview(t *testing.T) {
	for _, places := range []int{0, 1} {
		counters := metrics.New()
		v := &reviewer{path: "/mutate", places: make(chan struct{}, places), metrics: counters, log: quiet}
		body := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","resource":{"group":"","version":"v1","resource":"pods"}}}`
		request := httptest.NewRequest(http.MethodPost, "/mutate?timeout=1ns", strings.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		response := httptest.NewRecorder()
		v.ServeHTTP(response, request) // decides nothing: decide is nil
		require.Equal(t, http.StatusServiceUnavailable, response.Code)
		require.Equal(t, map[string]float64{"/mutate error late": 1}, reviews(t, counters))
		require.Empty(t, v.places)
	}
}

// BenchmarkReview is the cost of a review without the network: a pod of one container as a ReplicaSet makes
// it, and a Binding that is refused.
func BenchmarkReview(b *testing.B) {
	for _, bc := range []struct{ name, path string }{{"create", "/mutate"}, {"create", "/validate"}, {"binding", "/validate"}} {
		b.Run(bc.name+bc.path, func(b *testing.B) {
			body, err := os.ReadFile("testdata/" + bc.name + ".json")
			require.NoError(b, err)
			handler := Handler(DefaultRules(), nil, nil, metrics.New(), quiet)
			b.ReportAllocs()
			for b.Loop() {
				request := httptest.NewRequest(http.MethodPost, bc.path, bytes.NewReader(body))
				request.Header.Set("Content-Type", "application/json")
				handler.ServeHTTP(httptest.NewRecorder(), request)
			}
		})
	}
}
