package engine

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

// sizes are clusters of so many nodes with 8 GPUs and 10 pods each.
var sizes = []int{10, 100, 1000, 5000}

// cluster is an engine with nodes and bound pods, as after a start.
func cluster(b *testing.B, nodes int) *Engine {
	e := newEngine(b, Options{})
	for i := range nodes {
		e.SetNode(nodeOf(nodeName(i), h100s(i, 8)...))
	}
	for i := range nodes {
		for k := range 10 {
			e.SetPod(boundPod(b, i, k))
		}
	}
	return e
}

func boundPod(b *testing.B, node, k int) *scheduler.Pod {
	p := podOf(fmt.Sprintf("0a1b2c3d-0000-4000-8000-%06d%06d", node, k), "1/8000/10")
	return bindTo(given(b, p, scheduler.Placement{Node: nodeName(node),
		Containers: [][]grant.Share{{{UUID: uuid(node, k%8), MemoryMiB: 8000, CorePercent: 10}}}}), nodeName(node))
}

// each times each run by itself; prepare is not counted. It reports the median and the 99th
// percentile of the time that has passed, and the latter of the thread's own time, which other
// processes on the machine have no part in.
func each(b *testing.B, prepare func(i int), run func(i int)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var passed, own []time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		prepare(i)
		b.StartTimer()
		start, spent := time.Now(), threadTime()
		run(i)
		own = append(own, threadTime()-spent)
		passed = append(passed, time.Since(start))
	}
	percentile := func(took []time.Duration, p int) float64 {
		slices.Sort(took)
		return float64(took[len(took)*p/100].Nanoseconds()) / 1000
	}
	b.ReportMetric(percentile(passed, 50), "p50-µs")
	b.ReportMetric(percentile(passed, 99), "p99-µs")
	b.ReportMetric(percentile(own, 99), "p99-cpu-µs")
	b.ReportMetric(0, "ns/op")
}

func threadTime() time.Duration  { return readClock(unix.CLOCK_THREAD_CPUTIME_ID) }
func processTime() time.Duration { return readClock(unix.CLOCK_PROCESS_CPUTIME_ID) }

func readClock(id int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// toggle gives a changing node what it lacks: a pod less, a pod more.
type toggle map[int]bool

func (t toggle) change(b *testing.B, e *Engine, node int) {
	pod := boundPod(b, node, 0)
	if t[node] = !t[node]; t[node] {
		e.DeletePod(pod.UID)
	} else {
		e.SetPod(pod)
	}
}

// best looks at all nodes, as Filter and Score do.
func best(v *Evaluation, names []string) string {
	node, score := "", int64(-1)
	for _, name := range names {
		if verdict := v.Verdict(name); verdict.Fits && verdict.Score > score {
			node, score = name, verdict.Score
		}
	}
	return node
}

// BenchmarkCold is what PreFilter does for a pod with a new signature.
func BenchmarkCold(b *testing.B) {
	for _, kind := range []struct {
		name        string
		shape       []string
		annotations map[string]string
	}{
		{"1GPU", []string{"1/8000/10"}, nil},
		{"4GPUs", []string{"4/8000/10"}, nil},
		{"3containers", []string{"i1/8000/10", "1/8000/10", "1/4000/5"}, nil},
		{"topology", []string{"4/8000/10"}, map[string]string{"hami.io/gpu-scheduler-policy": "topology-aware"}},
		{"type", []string{"1/8000/10"}, map[string]string{"nvidia.com/use-gputype": "A100,H100"}},
		{"nowhere", []string{"1/80000/0"}, nil},
		// The worst: each container fits, and their sum too, but not all of them.
		{"9containers-nowhere", slices.Repeat([]string{"1/40000/0"}, 9), nil},
		{"6containers-nowhere", []string{"1/40000/0", "2/40001/0", "1/40002/0", "2/40003/0", "2/40004/0", "1/40005/0"}, nil},
	} {
		for _, nodes := range sizes {
			b.Run(fmt.Sprintf("pod=%s/nodes=%d", kind.name, nodes), func(b *testing.B) {
				e := cluster(b, nodes)
				s := e.Snapshot()
				p := annotated(podOf("u", kind.shape...), kind.annotations)
				r := requestOf(b, e, p)
				each(b, func(int) { e.verdicts = newCache(1) }, func(int) { e.Evaluate(s, p, r).Best(32, func(string) bool { return true }) })
			})
		}
	}
}

// BenchmarkUnequal is BenchmarkCold with pods of random sizes: no node is equal to another one.
func BenchmarkUnequal(b *testing.B) {
	for name, shape := range map[string][]string{"1GPU": {"1/8000/10"}, "3containers": {"i1/8000/10", "1/8000/10", "1/4000/5"}} {
		for _, nodes := range sizes {
			b.Run(fmt.Sprintf("pod=%s/nodes=%d", name, nodes), func(b *testing.B) {
				e := cluster(b, nodes)
				random := rand.New(rand.NewPCG(1, 1))
				for i := range nodes {
					p := podOf(fmt.Sprint("random", i), fmt.Sprintf("1/%d/1", 1+random.IntN(70_000)))
					if _, err := e.Reserve(p, requestOf(b, e, p), nodeName(i), "bench"); err != nil {
						b.Fatal(err)
					}
				}
				s, p := e.Snapshot(), podOf("u", shape...)
				r := requestOf(b, e, p)
				each(b, func(int) { e.verdicts = newCache(1) }, func(int) { e.Evaluate(s, p, r).Best(32, func(string) bool { return true }) })
			})
		}
	}
}

// BenchmarkWarm is Filter and Score for a pod with a known signature, after so many nodes changed.
func BenchmarkWarm(b *testing.B) {
	for _, changed := range []int{0, 1, 10, 100} {
		for _, nodes := range sizes {
			if changed > nodes {
				continue
			}
			b.Run(fmt.Sprintf("changed=%d/nodes=%d", changed, nodes), func(b *testing.B) {
				e := cluster(b, nodes)
				names := e.Snapshot().Nodes()
				p := podOf("u", "1/8000/10")
				r := requestOf(b, e, p)
				e.Evaluate(e.Snapshot(), p, r)
				gone := toggle{}
				each(b, func(i int) {
					for k := range changed { // spread over the table, the worst case
						gone.change(b, e, (i+k*(nodes/changed))%nodes)
					}
				}, func(int) {
					v := e.Evaluate(e.Snapshot(), p, r)
					best(v, names)
				})
			})
		}
	}
}

// BenchmarkEvaluate is the same without looking at each node.
func BenchmarkEvaluate(b *testing.B) {
	for _, nodes := range sizes {
		b.Run(fmt.Sprintf("changed=1/nodes=%d", nodes), func(b *testing.B) {
			e := cluster(b, nodes)
			p := podOf("u", "1/8000/10")
			r := requestOf(b, e, p)
			e.Evaluate(e.Snapshot(), p, r)
			gone := toggle{}
			each(b, func(i int) { gone.change(b, e, i%nodes) }, func(int) { e.Evaluate(e.Snapshot(), p, r) })
		})
	}
}

// BenchmarkVerdict is kube-scheduler's Filter of one node, from 16 goroutines.
func BenchmarkVerdict(b *testing.B) {
	for _, nodes := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			e := cluster(b, nodes)
			names := e.Snapshot().Nodes()
			p := podOf("u", "1/8000/10")
			v := e.Evaluate(e.Snapshot(), p, requestOf(b, e, p))
			b.SetParallelism(max(1, 16/runtime.GOMAXPROCS(0)))
			var next atomic.Int64
			before := processTime()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				fits := 0
				for i := int(next.Add(7919)); pb.Next(); i++ {
					if verdict := v.Verdict(names[i%len(names)]); verdict.Fits {
						fits++
					}
				}
			})
			b.ReportMetric(float64((processTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkPod is all that one pod costs: Filter and Score on all nodes, Reserve, the event that confirms it.
func BenchmarkPod(b *testing.B) {
	for _, nodes := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			e := cluster(b, nodes)
			names := e.Snapshot().Nodes()
			var p *scheduler.Pod
			each(b, func(i int) {
				if i > nodes*20 {
					e.DeletePod(fmt.Sprintf("uid-%d", i-nodes*20))
				}
				p = podOf(fmt.Sprintf("uid-%d", i), "1/8000/10")
			}, func(i int) {
				r := requestOf(b, e, p)
				node := best(e.Evaluate(e.Snapshot(), p, r), names)
				placement, err := e.Reserve(p, r, node, "bench")
				if err != nil {
					b.Fatal(err)
				}
				e.SetPod(bindTo(given(b, p, placement), node))
			})
		})
	}
}

// BenchmarkReserve is a reservation and its end.
func BenchmarkReserve(b *testing.B) {
	for _, nodes := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			e := cluster(b, nodes)
			p := podOf("u", "1/8000/10")
			r := requestOf(b, e, p)
			each(b, func(i int) { e.Unreserve("u", "bench") }, func(i int) {
				if _, err := e.Reserve(p, r, nodeName(i%nodes), "bench"); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkSetPod is the event of a pod that is bound.
func BenchmarkSetPod(b *testing.B) {
	for _, nodes := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			e := cluster(b, nodes)
			var p *scheduler.Pod
			each(b, func(i int) { p = boundPod(b, i%nodes, 0); e.DeletePod(p.UID) }, func(int) { e.SetPod(p) })
		})
	}
}

// BenchmarkHeap is what is in use with 50 signatures' verdicts kept.
func BenchmarkHeap(b *testing.B) {
	for _, nodes := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				e := cluster(b, nodes)
				runtime.GC()
				runtime.ReadMemStats(&after)
				state := after.HeapAlloc - before.HeapAlloc
				for i := range DefaultSignatures {
					p := podOf("u", fmt.Sprintf("1/%d/10", 1000+i))
					e.Evaluate(e.Snapshot(), p, requestOf(b, e, p))
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(state)/(1<<20), "state-MiB")
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "all-MiB")
				runtime.KeepAlive(e)
			}
		})
	}
}

// BenchmarkText is the reason of one node, as the extender gives it for each that it refuses.
func BenchmarkText(b *testing.B) {
	e := cluster(b, 100)
	names := e.Snapshot().Nodes()
	p := podOf("u", "1/80000/0")
	v := e.Evaluate(e.Snapshot(), p, requestOf(b, e, p))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		verdict := v.Verdict(names[i%len(names)])
		_ = verdict.Text()
	}
}

// BenchmarkLarge is a cluster of 20,000 nodes with 8 GPUs and 100,000 pods, which is as large as it is meant to be: how long
// the state takes to build from events, the pods placed after that (every tenth asks for what no pod has asked for
// before), and the memory with full caches.
func BenchmarkLarge(b *testing.B) {
	const nodes, pods = 20_000, 100_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var inputs []*scheduler.Pod
	for i := range pods {
		inputs = append(inputs, boundPod(b, i%nodes, i/nodes))
	}
	e := newEngine(b, Options{})
	start, spent := time.Now(), processTime()
	for i := range nodes {
		e.SetNode(nodeOf(nodeName(i), h100s(i, 8)...))
	}
	for _, p := range inputs {
		e.SetPod(p)
	}
	took, computed := time.Since(start), processTime()-spent
	inputs = nil
	var p *scheduler.Pod
	each(b, func(i int) {
		memory := 8000
		if i%10 == 0 {
			memory += i
		}
		p = podOf(fmt.Sprintf("uid-%d", i), fmt.Sprintf("1/%d/10", memory))
	}, func(int) {
		r := requestOf(b, e, p)
		node := e.Evaluate(e.Snapshot(), p, r).Best(32, func(string) bool { return true })[0]
		placement, err := e.Reserve(p, r, node, "bench")
		if err != nil {
			b.Fatal(err)
		}
		e.SetPod(bindTo(given(b, p, placement), node))
	})
	for i := range DefaultSignatures {
		p := podOf("u", fmt.Sprintf("1/%d/10", 1000+i))
		e.Evaluate(e.Snapshot(), p, requestOf(b, e, p))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(took.Seconds(), "start-s")
	b.ReportMetric(computed.Seconds(), "start-cpu-s")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "heap-MiB")
	runtime.KeepAlive(e)
}
