package metrics_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/monitor/metrics"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// crowd is a node with many containers that use its GPU.
func crowd(tb testing.TB, containers int) (*nodeview.Live, *nodetest.StateDir) {
	file := nodetest.File()
	for i := range file.Devices {
		file.Devices[i].Replicas, file.Devices[i].MemoryMiB, file.Devices[i].CorePercent = containers, int64(containers), containers
	}
	s := nodetest.NewStateDirOf(tb, file)
	use := &feedback.Use{Percent: map[string]map[string]float64{nodetest.H200: {}}}
	for i := range containers {
		id := fmt.Sprintf("%064x", i)
		s.Claim(id, fmt.Sprintf("inference-server-7d4b9c6f5d-%05x", i), grant.Share{UUID: nodetest.H200, MemoryMiB: 1, CorePercent: 1})
		s.Use(id, 0, 1<<20)
		s.Use(id, 1, 1<<20)
		use.Percent[nodetest.H200][id] = 0.2
	}
	live := nodeview.NewLive(nodeview.LiveConfig{
		Snapshot: s.Ledger.Snapshot, Dir: s.Ledger.Dir, Node: func() node.File { return file },
		Telemetry: func(context.Context) (map[string]nvidia.Telemetry, error) { return telemetry(), nil },
		Use:       func() *feedback.Use { return use },
		Cordoned:  func() ([]string, error) { return nil, nil },
	})
	require.NoError(tb, live.ReadTelemetry(context.Background()))
	return live, s
}

func handlerOf(live *nodeview.Live) http.Handler {
	return metrics.NewHandler(metrics.HandlerConfig{Registry: registryOf(live.Read), View: live.Read})
}

// scrape sends the request of Prometheus.
func scrape(tb testing.TB, server *httptest.Server, encoding string) (bytes int64) {
	request, err := http.NewRequest(http.MethodGet, server.URL+"/metrics", nil)
	require.NoError(tb, err)
	request.Header.Set("Accept-Encoding", encoding)
	response, err := server.Client().Do(request)
	require.NoError(tb, err)
	defer response.Body.Close()
	require.Equal(tb, http.StatusOK, response.StatusCode)
	require.Equal(tb, encoding == "gzip", response.Header.Get("Content-Encoding") == "gzip")
	bytes, err = io.Copy(io.Discard, response.Body)
	require.NoError(tb, err)
	return bytes
}

// A whole scrape of 500 containers over TCP, including the client.
func BenchmarkScrape(b *testing.B) {
	for _, encoding := range []string{"identity", "gzip"} {
		b.Run(encoding, func(b *testing.B) {
			live, _ := crowd(b, 500)
			server := httptest.NewServer(handlerOf(live))
			defer server.Close()
			scrape(b, server, encoding)
			var bytes int64
			b.ReportAllocs()
			defer processor(b)()
			for b.Loop() {
				bytes = scrape(b, server, encoding)
			}
			b.ReportMetric(float64(bytes), "bytes/scrape")
		})
	}
}

// processor reports CPU time, which does not depend on the load of the machine.
func processor(b *testing.B) func() {
	spent := func() time.Duration {
		var u unix.Rusage
		require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := spent()
	return func() { b.ReportMetric(float64((spent()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op") }
}

// The parts of a scrape: the view, and the view as metrics.
func BenchmarkGather(b *testing.B) {
	live, _ := crowd(b, 500)
	b.Run("view", func(b *testing.B) {
		b.ReportAllocs()
		defer processor(b)()
		for b.Loop() {
			if _, err := live.Read(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("families", func(b *testing.B) {
		registry := registryOf(live.Read)
		b.ReportAllocs()
		defer processor(b)()
		for b.Loop() {
			if _, err := registry.Gather(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
