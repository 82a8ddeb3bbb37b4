package main

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/nvidia"
)

// nodeObject is the metadata of a Node.
type nodeObject struct {
	mu      sync.Mutex
	object  metav1.PartialObjectMetadata
	written chan struct{} // closed by the first write
	once    sync.Once
}

func (n *nodeObject) Get(context.Context, string) (*metav1.PartialObjectMetadata, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.object.DeepCopy(), nil
}

func (n *nodeObject) Patch(_ context.Context, _ string, patch []byte) (*metav1.PartialObjectMetadata, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.once.Do(func() { close(n.written) })
	if err := json.Unmarshal(patch, &n.object); err != nil {
		return nil, err
	}
	return n.object.DeepCopy(), nil
}

func (n *nodeObject) PatchStatus(context.Context, string, []byte) error { return nil }

func newRegistered(t *testing.T, n *nodeObject) *noderegister.Publisher {
	registered, err := noderegister.New(noderegister.Config{
		Client: n, NodeName: "node-1",
		Node: func() (noderegister.Node, bool) {
			return noderegister.Node{Devices: []noderegister.Device{{
				GPU: nvidia.GPU{UUID: "GPU-1"}, Replicas: 10, MemoryMiB: 1000, CorePercent: 100, Mode: api.ModeShared, Healthy: true,
			}}}, true
		},
	})
	require.NoError(t, err)
	return registered
}

// admissions counts how often an agent waited for the pods of its node.
type admissions struct {
	waited int
	never  bool // admitted
}

func (a *admissions) Wait(ctx context.Context) {
	a.waited++
	if a.never {
		<-ctx.Done()
	}
}

// The rest of the agent is stopped only when schedulers know that the node is left: what
// they bind until then the kubelet has to find a device plugin for.
func TestSchedulersAreNotifiedBeforeTheAgentStops(t *testing.T) {
	n := &nodeObject{written: make(chan struct{})}
	leaving, signal := context.WithCancel(t.Context())
	var bound admissions
	left := make(chan string, 1)
	go func() {
		leave(t.Context(), leaving, newRegistered(t, n), &bound)
		n.mu.Lock()
		defer n.mu.Unlock()
		left <- n.object.Annotations["hami.io/node-nvidia-register"]
	}()
	<-n.written
	n.mu.Lock()
	require.Contains(t, n.object.Annotations["hami.io/node-nvidia-register"], `"health":true`)
	n.mu.Unlock()
	select {
	case <-left:
		require.Fail(t, "it stopped before the notification")
	default:
	}
	signal()
	require.NotContains(t, <-left, `"health":true`)
	require.Equal(t, 1, bound.waited)
}

// What ends because of a failure doesn't wait for pods.
func TestAFailureIsNotWaitedFor(t *testing.T) {
	n := &nodeObject{written: make(chan struct{})}
	running, fail := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		leave(running, t.Context(), newRegistered(t, n), &admissions{never: true})
		close(done)
	}()
	<-n.written
	fail()
	<-done
}

func TestLeaveWithoutAnAPIServer(t *testing.T) {
	for _, end := range []func(running, leaving context.CancelFunc){
		func(running, _ context.CancelFunc) { running() },
		func(_, leaving context.CancelFunc) { leaving() },
	} {
		running, fail := context.WithCancel(t.Context())
		leaving, signal := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			leave(running, leaving, nil, nil)
			close(done)
		}()
		end(fail, signal)
		select {
		case <-done:
		case <-time.After(time.Minute):
			require.Fail(t, "it doesn't leave")
		}
		fail()
		signal()
	}
}
