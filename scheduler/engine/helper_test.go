package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// tester is what tests, property tests and benchmarks have in common.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

// clock is a time that only the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newClock() *clock { return &clock{now: time.Unix(1_800_000_000, 0)} }

func newEngine(t tester, o Options) *Engine {
	t.Helper()
	if o.Request == (request.Options{}) {
		o.Request = request.DefaultOptions()
	}
	e, err := New(o)
	if err != nil {
		t.Fatalf("new engine: %v", err)
	}
	return e
}

func uuid(node, gpu int) string { return fmt.Sprintf("GPU-%08x-0000-0000-0000-%012x", node, gpu) }

// h100 is a sound GPU with 80000 MiB and 10 replicas.
func h100(node, gpu int) scheduler.GPU {
	return scheduler.GPU{UUID: uuid(node, gpu), Model: "NVIDIA H100 80GB HBM3", Index: gpu, NUMA: gpu / 4, MemoryMiB: 80000, Cores: 100, Replicas: 10,
		Mode: "hami-core", Healthy: true}
}

func h100s(node, n int) []scheduler.GPU {
	var all []scheduler.GPU
	for i := range n {
		all = append(all, h100(node, i))
	}
	return all
}

// nodeOf is a node that has registered the GPUs.
func nodeOf(name string, gpus ...scheduler.GPU) *scheduler.Node {
	list := []map[string]any{}
	cordoned := ""
	for _, c := range gpus {
		gpu := map[string]any{"uuid": c.UUID, "model": c.Model, "index": c.Index, "memoryMiB": c.MemoryMiB, "cores": c.Cores, "replicas": c.Replicas,
			"mode": c.Mode, "healthy": c.Healthy}
		if c.NUMA >= 0 {
			gpu["numa"] = c.NUMA
		}
		if c.Others != (scheduler.Use{}) {
			gpu["others"] = api.NodeUse{MemoryMiB: c.Others.MemoryMiB, Cores: c.Others.Cores, Replicas: c.Others.Replicas}
		}
		if c.Isolation > grant.IsolationAny {
			gpu["isolation"] = c.Isolation.String()
		}
		if c.Cordoned {
			cordoned += c.UUID + ","
		}
		list = append(list, gpu)
	}
	text, err := json.Marshal(map[string]any{"version": 1, "gpus": list})
	if err != nil {
		panic(err)
	}
	return &scheduler.Node{Name: name, Annotations: map[string]string{api.AnnotationNodeGPUs: string(text), api.AnnotationHAMiCordon: cordoned}}
}

// nodeName is so that names sort as numbers.
func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// podOf is a waiting pod. Each container is "count/MiB/cores", as HAMi's resources, with "i" or "s" before for init
// containers and sidecars; a MiB below 0 is a percentage; cores of 0 are left out.
func podOf(uid string, containers ...string) *scheduler.Pod {
	p := &scheduler.Pod{UID: uid, Namespace: "ns", Name: "pod-" + uid, Annotations: map[string]string{}}
	for i, text := range containers {
		c := scheduler.Container{Name: fmt.Sprintf("c%d", i), Resources: map[string]scheduler.Amount{}}
		switch text[0] {
		case 'i':
			c.Kind, text = scheduler.Init, text[1:]
		case 's':
			c.Kind, text = scheduler.Sidecar, text[1:]
		}
		var count, mib, cores int64
		if _, err := fmt.Sscanf(text, "%d/%d/%d", &count, &mib, &cores); err != nil {
			panic(err)
		}
		set := func(name string, n int64) {
			if n != 0 {
				c.Resources["nvidia.com/"+name] = scheduler.Amount{Value: n}
			}
		}
		set("gpu", count)
		set("gpumem", max(mib, 0))
		set("gpumem-percentage", max(-mib, 0))
		set("gpucores", cores)
		p.Containers = append(p.Containers, c)
	}
	return p
}

// annotated is the pod with more annotations.
func annotated(p *scheduler.Pod, more map[string]string) *scheduler.Pod {
	next := *p
	next.Annotations = maps.Clone(p.Annotations)
	maps.Copy(next.Annotations, more)
	return &next
}

// given is the pod with the annotations of a placement.
func given(t tester, p *scheduler.Pod, placement scheduler.Placement) *scheduler.Pod {
	t.Helper()
	more, err := wire.Annotations(p, placement, nil, time.Unix(1_800_000_000, 0))
	if err != nil {
		t.Fatalf("annotations: %v", err)
	}
	return annotated(p, more)
}

// bindTo is the pod on the node.
func bindTo(p *scheduler.Pod, node string) *scheduler.Pod {
	next := *p
	next.Node = node
	return &next
}

func requestOf(t tester, e *Engine, p *scheduler.Pod) *request.Request {
	t.Helper()
	r, err := e.Request(p)
	if err != nil {
		t.Fatalf("request of %s: %v", p.Name, err)
	}
	if r == nil {
		t.Fatalf("%s requests nothing", p.Name)
	}
	return r
}

// place reserves, and gives the pod as it is once it is bound.
func place(t tester, e *Engine, p *scheduler.Pod, node string) *scheduler.Pod {
	t.Helper()
	placement, err := e.Reserve(p, requestOf(t, e, p), node, "test")
	if err != nil {
		t.Fatalf("reserve: %v", err)
	}
	return bindTo(given(t, p, placement), node)
}
