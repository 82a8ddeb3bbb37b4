package kube

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/fence"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

const resizeGPU = "GPU-00000000-0000-0000-0000-000000000000"

// resizing is a cluster of one node and one pod, with a Resizer that runs.
type resizing struct {
	t      *testing.T
	client *fake.Clientset
	engine *engine.Engine

	mu     sync.Mutex
	events []string
	ready  error
	asked  int // how often Term was called
}

func (r *resizing) pod() *v1.Pod {
	p, err := r.client.CoreV1().Pods("ns").Get(r.t.Context(), "p", metav1.GetOptions{})
	require.NoError(r.t, err)
	return p
}

// status is the answer, once there is one and the request is gone.
func (r *resizing) status() (s grant.ResizeStatus, p *v1.Pod) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		p = r.pod()
		_, asked := p.Annotations[api.AnnotationResize]
		_, answered := p.Annotations[api.AnnotationResizeStatus]
		return !asked && answered
	}, time.Minute, 5*time.Millisecond)
	require.NoError(r.t, json.Unmarshal([]byte(p.Annotations[api.AnnotationResizeStatus]), &s))
	return s, p
}

func (r *resizing) ask(value string) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{api.AnnotationResize: value, api.AnnotationResizeStatus: nil}}})
	require.NoError(r.t, err)
	_, err = r.client.CoreV1().Pods("ns").Patch(r.t.Context(), "p", types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(r.t, err)
}

// memory is what is reserved of the GPU.
func (r *resizing) memory() (mib int64) {
	r.engine.Snapshot().GPUs(func(_ string, _ *scheduler.GPU, used scheduler.Use) { mib = used.MemoryMiB })
	return mib
}

func newResizing(t *testing.T, change func(*v1.Node, *v1.Pod, *ResizerConfig)) *resizing {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "u1", Namespace: "ns", Name: "p", Labels: map[string]string{"x": "y"}},
		Spec:       v1.PodSpec{NodeName: "n1", SchedulerName: "gpuslice-scheduler", Containers: []v1.Container{{Name: "main"}}},
		Status:     v1.PodStatus{Phase: v1.PodRunning},
	}
	var err error
	pod.Annotations, err = wire.Annotations(convert.Pod(pod), scheduler.Placement{Node: "n1", Containers: [][]grant.Share{
		{{UUID: resizeGPU, MemoryMiB: 8000, CorePercent: 30}},
	}}, nil, time.Unix(1, 0))
	require.NoError(t, err)
	gpus, err := json.Marshal(map[string]any{"version": 1, "gpus": []any{map[string]any{
		"uuid": resizeGPU, "model": "NVIDIA H200", "memoryMiB": 80000, "cores": 100, "replicas": 10, "mode": "hami-core", "healthy": true}}})
	require.NoError(t, err)
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{api.AnnotationNodeGPUs: string(gpus)}}}
	r := &resizing{t: t}
	r.engine, err = engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(t, err)
	c := ResizerConfig{
		Engine: r.engine, Log: slog.New(slog.DiscardHandler),
		Term: func(context.Context) (fence.Term, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.asked++
			return fence.Term{}, r.ready
		},
		Event: func(_ *v1.Pod, kind, reason, message string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, kind+" "+reason+": "+message)
		},
	}
	if change != nil {
		change(node, pod, &c)
	}
	r.client = fake.NewClientset(node, pod)
	c.Client = r.client
	factory := NewInformers(r.client)
	feed, err := NewFeed(factory, r.engine)
	require.NoError(t, err)
	resizer, err := feed.Resizer(factory, c)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	require.NoError(t, feed.Wait(ctx))
	ended := make(chan struct{})
	go func() { defer close(ended); resizer.Run(ctx) }()
	t.Cleanup(func() { cancel(); factory.Shutdown(); <-ended })
	return r
}

func TestResizer(t *testing.T) {
	r := newResizing(t, nil)
	const asked = `{"main":{"memoryMiB":20000,"cores":50}}`
	r.ask(asked)
	status, pod := r.status()
	assert.Equal(t, grant.ResizeReserved, status.Outcome)
	assert.Equal(t, asked, status.Request)
	assert.Equal(t, int64(1), status.Generation)
	assert.Equal(t, "main: 20000 MiB, 50 percent of cores of "+resizeGPU, status.Message)
	placement, err := wire.DecodePod(convert.Pod(pod), nil)
	require.NoError(t, err)
	assert.Equal(t, []grant.Share{{UUID: resizeGPU, MemoryMiB: 20000, CorePercent: 50}}, placement.Containers[0])
	assert.Equal(t, pod.Annotations[api.AnnotationHAMiAllocated], pod.Annotations[api.AnnotationHAMiToAllocate], "HAMi's annotations have it too")
	assert.Contains(t, pod.Annotations[api.AnnotationHAMiAllocated], "20000,50")
	require.Eventually(t, func() bool { return r.memory() == 20000 }, time.Minute, 5*time.Millisecond)

	r.ask(`{"main":{"memoryMiB":80001}}`)
	status, pod = r.status()
	assert.Equal(t, grant.ResizeRefused, status.Outcome)
	assert.Contains(t, status.Message, "only 80000 of 80000 MiB are free")
	assert.Contains(t, pod.Annotations[api.AnnotationGrant], "20000", "nothing has changed")
	r.ask(`{"main":{"memoryMiB":-1}}`)
	status, _ = r.status()
	assert.Equal(t, grant.ResizeRefused, status.Outcome)
	assert.Contains(t, status.Message, "whole number")

	r.ask(`{"main":{"memoryMiB":1000}}`)
	status, _ = r.status()
	assert.Equal(t, int64(2), status.Generation)
	require.Eventually(t, func() bool { return r.memory() == 1000 }, time.Minute, 5*time.Millisecond)
	assert.Empty(t, r.engine.Problems())
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(t, r.events, 4)
	assert.Contains(t, r.events[0], "Normal GPUSliceResized: main: 20000 MiB")
	assert.Contains(t, r.events[1], "Warning GPUSliceResizeRefused: ")
}

func TestResizerIgnoresOtherPods(t *testing.T) {
	foreign := newResizing(t, func(_ *v1.Node, _ *v1.Pod, c *ResizerConfig) {
		c.Ours = func(name string) bool { return name == "another" }
	})
	foreign.ask(`{"main":{"memoryMiB":1000}}`)
	hamis := newResizing(t, func(n *v1.Node, _ *v1.Pod, _ *ResizerConfig) { n.Annotations = nil })
	hamis.ask(`{"main":{"memoryMiB":1000}}`)
	status, _ := hamis.status()
	assert.Contains(t, status.Message, "node n1 has no GPUs registered")
	assert.Contains(t, foreign.pod().Annotations, api.AnnotationResize)
}

func TestResizerWithoutLeadership(t *testing.T) {
	r := newResizing(t, nil)
	r.mu.Lock()
	r.ready = errors.New("another replica leads")
	r.mu.Unlock()
	r.ask(`{"main":{"memoryMiB":1000}}`)
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.asked >= 2 // so the first time is over
	}, time.Minute, 5*time.Millisecond)
	assert.Contains(t, r.pod().Annotations, api.AnnotationResize)
	r.mu.Lock()
	r.ready = nil
	r.mu.Unlock()
	status, _ := r.status()
	assert.Equal(t, grant.ResizeReserved, status.Outcome, "once it leads, what waits is answered")
}

// Answers that are lost, and writes that come too late, are settled: the grant is written
// once, and it matches what is reserved.
func TestResizerLostAnswers(t *testing.T) {
	for name, fail := range map[string]func(n int, do func()) error{
		"a conflict": func(n int, _ func()) error {
			if n == 1 {
				return apierrors.NewConflict(podResource, "p", errors.New("changed"))
			}
			return nil
		},
		"an answer that was lost": func(n int, do func()) error {
			switch n {
			case 1:
				do()
				return errors.New("connection lost")
			case 2:
				return apierrors.NewConflict(podResource, "p", errors.New("changed"))
			}
			return nil
		},
		"a server that is not there": func(n int, _ func()) error {
			if n <= 2 {
				return errors.New("connection refused")
			}
			return nil
		},
		"a refusal": func(n int, _ func()) error {
			if n == 1 {
				return apierrors.NewForbidden(podResource, "p", errors.New("no right"))
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newResizing(t, nil)
			n := 0
			r.client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if a.GetSubresource() != "status" {
					return false, nil, nil
				}
				n++
				err := fail(n, func() {
					_, _, err := clienttesting.ObjectReaction(r.client.Tracker())(a)
					assert.NoError(t, err)
				})
				return err != nil, nil, err
			})
			r.ask(`{"main":{"memoryMiB":20000}}`)
			status, pod := r.status()
			assert.Equal(t, grant.ResizeReserved, status.Outcome)
			assert.Equal(t, int64(1), status.Generation, "once")
			assert.Contains(t, pod.Annotations[api.AnnotationGrant], "20000")
			require.Eventually(t, func() bool { return r.memory() == 20000 && len(r.engine.Problems()) == 0 }, time.Minute, 5*time.Millisecond)
		})
	}
}
