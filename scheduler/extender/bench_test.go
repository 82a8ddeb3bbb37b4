package extender

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// BenchmarkFilter is the work that HAMi's extender was measured with: nodes with 8 GPUs,
// one-gpu pods of 8000 MiB and 10 cores on them, and all nodes' names in each call over HTTP. Each
// filter is of a new pod and reserves, so that a node has changed since the one before.
//
// cpu-ms/op is the CPU time of the process, which is the caller's part (encoding the
// names, reading the answer) as well as the extender's.
func BenchmarkFilter(b *testing.B) {
	for _, size := range []struct{ nodes, pods int }{{10, 0}, {100, 500}, {1000, 2000}, {5000, 5000}} {
		for _, callers := range []int{1, 8} {
			b.Run(fmt.Sprintf("nodes=%d/pods=%d/callers=%d", size.nodes, size.pods, callers), func(b *testing.B) {
				benchFilter(b, size.nodes, size.pods, callers)
			})
		}
	}
}

func benchFilter(b *testing.B, nodes, pods, callers int) {
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(b, err)
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%04d", i)
		e.SetNode(&scheduler.Node{Name: names[i], Annotations: map[string]string{"gpuslice.io/node-gpus": register(i, 8)}})
	}
	for i := range pods {
		node := i % nodes
		p := convert.Pod(pod(fmt.Sprint("old-", i), 8000, 10))
		p.Node = names[node]
		shares := []grant.Share{{UUID: gpuUUID(node, i/nodes%8), MemoryMiB: 8000, CorePercent: 10}}
		p.Annotations, err = wire.Annotations(p, scheduler.Placement{Node: names[node], Containers: [][]grant.Share{shares}}, nil, time.Now())
		require.NoError(b, err)
		e.SetPod(p)
	}
	server := httptest.NewServer(New(Options{Engine: e, Cluster: newCluster(b, e).Cluster}).Handler())
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}

	var (
		next  atomic.Int64
		mu    sync.Mutex
		took  []time.Duration
		group sync.WaitGroup
	)
	began := cpu()
	b.ResetTimer()
	for range callers {
		group.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				p := pod(fmt.Sprintf("new-%d-%d", b.N, i), 8000, 10)
				body, err := json.Marshal(extenderv1.ExtenderArgs{Pod: p, NodeNames: &names})
				if err != nil {
					panic(err)
				}
				start := time.Now()
				response, err := client.Post(server.URL+"/filter", "application/json", bytes.NewReader(body))
				if err != nil {
					panic(err)
				}
				if _, err := io.Copy(io.Discard, response.Body); err != nil {
					panic(err)
				}
				d := time.Since(start)
				response.Body.Close()
				// So that the cluster doesn't fill up.
				e.DeletePod(string(p.UID))
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	b.StopTimer()
	used := cpu() - began
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e6, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e6, "p99-ms")
	b.ReportMetric(float64(used.Nanoseconds())/1e6/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "filters/s")
}

// cpu is the time that this process has computed.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
