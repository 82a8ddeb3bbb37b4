package plugin

import (
	"context"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// BenchmarkCycle is what this plugin costs a pod that asks for a GPU: PreFilter, Filter of
// the nodes that it names, Score of those that fit, Reserve. Each pod changes one node, as in a cluster.
func BenchmarkCycle(b *testing.B) {
	for _, nodes := range []int{10, 100, 1000, 5000, 20000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			factory := kube.NewInformers(fake.NewClientset())
			h := &handle{client: fake.NewClientset(), factory: factory}
			p, err := (&Factory{}).New(b.Context(), &runtime.Unknown{}, h)
			if err != nil {
				b.Fatal(err)
			}
			w := &world{Plugin: p.(*Plugin), handle: h}
			w.feed = started(b, w)
			var infos []fwk.NodeInfo
			for i := range nodes {
				node := gpuNode(fmt.Sprintf("node-%d", i), 8, i*8)
				if err := factory.Core().V1().Nodes().Informer().GetStore().Add(node); err != nil {
					b.Fatal(err)
				}
				w.feed.Node(node.Name)
				infos = append(infos, &nodeInfo{node: node, generation: int64(i + 1)})
			}
			b.ResetTimer()
			for n := 0; b.Loop(); n++ {
				w.cycle(b, b.Context(), gpuPod(fmt.Sprintf("p%d", n), 100, 1), infos, n)
			}
		})
	}
}

// started is the world's feed, with informers that have nothing to wait for.
func started(b *testing.B, w *world) *kube.Feed {
	w.factory.Start(b.Context().Done())
	if err := w.feed.Wait(b.Context()); err != nil {
		b.Fatal(err)
	}
	return w.feed
}

func (w *world) cycle(b *testing.B, ctx context.Context, pod *v1.Pod, infos []fwk.NodeInfo, n int) {
	state := newState()
	named, status := w.PreFilter(ctx, state, pod, infos)
	if !status.IsSuccess() {
		b.Fatal(status.Message())
	}
	best, most := "", int64(-1)
	for name := range named.NodeNames {
		info := w.informerSync.nodes[name].info
		if !w.Filter(ctx, state, pod, info).IsSuccess() {
			continue
		}
		if score, _ := w.Score(ctx, state, pod, info); score > most {
			best, most = info.Node().Name, score
		}
	}
	if status := w.Reserve(ctx, state, pod, best); !status.IsSuccess() {
		b.Fatal(status.Message())
	}
	infos[n%len(infos)].(*nodeInfo).generation += int64(len(infos))
}
