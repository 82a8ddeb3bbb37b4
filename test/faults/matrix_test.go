//go:build faults

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// perCell is how many containers each cell of the matrix tries.
const perCell = 50

// rearmed is how many containers of a cell share one fault: then the agent is made
// whole, and the fault is made again.
const rearmed = 10

// limitMiB is the memory that the granted containers have.
const limitMiB = 2000

// requestTimeout is short, for many cells wait for it.
const requestTimeout = 500 * time.Millisecond

// shape is a kind of container.
type shape struct {
	name        string
	annotations func(uuid string) map[string]string
	container   func(uuid, dir string) harness.Container
}

func granted(uuid string) map[string]string {
	return map[string]string{"hami.io/vgpu-devices-to-allocate": fmt.Sprintf("%s,NVIDIA,%d,2:;", uuid, limitMiB)}
}

func none(string) map[string]string { return nil }

var shapes = []shape{
	{"with a grant", granted, func(string, string) harness.Container { return harness.Container{} }},
	{"without one, its image says all", none, func(string, string) harness.Container {
		return harness.Container{Image: harness.GreedyImage}
	}},
	{"without one, names a card's UUID", none, func(uuid, _ string) harness.Container {
		return harness.Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=" + uuid}}
	}},
	{"with a grant and its own ld.so.preload", granted, func(_, dir string) harness.Container {
		return harness.Container{Mounts: []*cri.Mount{{HostPath: filepath.Join(dir, "empty"), ContainerPath: "/etc/ld.so.preload"}}}
	}},
	{"with a grant, switches limits off", granted, func(string, string) harness.Container {
		return harness.Container{Env: []string{"CUDA_DISABLE_CONTROL=true", "CUDA_DEVICE_MEMORY_LIMIT_0=0", "CUDA_DEVICE_SM_LIMIT=0"}}
	}},
	{"without one, privileged", none, func(string, string) harness.Container {
		return harness.Container{Image: harness.GreedyImage, Privileged: true}
	}},
	{"with a grant, privileged", granted, func(string, string) harness.Container {
		return harness.Container{Privileged: true}
	}},
}

// fault is a state of the plugin. arm brings it about and returns what ends it.
type fault struct {
	name string
	// mustWork says that containers have to be created all the same.
	mustWork bool
	// single makes the fault anew for each container, for it is about one request.
	single bool
	arm    func(t *testing.T, n *harness.Node) (heal func())
	// during is called when a creation has begun.
	during func(n *harness.Node)
}

var faults = []fault{
	{name: "answers in time", mustWork: true, arm: func(*testing.T, *harness.Node) func() { return func() {} }},
	{name: "answers with an error", arm: func(t *testing.T, n *harness.Node) func() {
		// Its entries can't be changed: every grant is refused.
		dir := filepath.Join(n.StateDir(), "containers")
		require.NoError(t, syscall.Mount(dir, dir, "", syscall.MS_BIND, ""))
		require.NoError(t, syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
		return func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) }
	}},
	{name: "slower than the runtime's timeout", arm: func(t *testing.T, n *harness.Node) func() {
		lock, err := os.OpenFile(filepath.Join(n.StateDir(), "lock"), os.O_RDWR, 0)
		require.NoError(t, err)
		require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
		return func() { lock.Close() }
	}},
	{name: "SIGSTOP", arm: func(t *testing.T, n *harness.Node) func() {
		require.NoError(t, n.Agent.Signal(syscall.SIGSTOP))
		return func() {
			require.NoError(t, n.Agent.Signal(syscall.SIGCONT))
			require.NoError(t, n.WaitGuarded(context.Background()))
		}
	}},
	{name: "SIGKILL in the middle of the request", single: true, arm: func(t *testing.T, n *harness.Node) func() {
		return func() {
			n.Agent.Kill()
			require.NoError(t, n.StartAgent(context.Background()))
		}
	}, during: func(n *harness.Node) { _ = n.Agent.Signal(syscall.SIGKILL) }},
	{name: "absent", arm: func(t *testing.T, n *harness.Node) func() {
		n.Agent.Kill()
		return func() { require.NoError(t, n.StartAgent(context.Background())) }
	}},
	{name: "absent after a restart of containerd", arm: func(t *testing.T, n *harness.Node) func() {
		n.Agent.Kill()
		n.Containerd.Kill()
		require.NoError(t, n.Containerd.Start(context.Background()))
		return func() { require.NoError(t, n.StartAgent(context.Background())) }
	}},
	{name: "connected twice", arm: func(t *testing.T, n *harness.Node) func() {
		second, err := n.StartSecondAgent(context.Background())
		require.NoError(t, err)
		return func() {
			second.Kill()
			require.NoError(t, n.WaitGuarded(context.Background()))
		}
	}},
	{name: "connected and not yet synchronised", single: true, arm: func(t *testing.T, n *harness.Node) func() {
		n.Agent.Kill()
		started := make(chan error, 1)
		go func() { started <- n.StartAgent(context.Background()) }()
		return func() { require.NoError(t, <-started) }
	}},
}

func TestMatrix(t *testing.T) {
	ctx := context.Background()
	n, err := harness.NewNode(ctx, harness.NodeOptions{Containerd: harness.ContainerdOptions{RequestTimeout: requestTimeout}})
	t.Cleanup(func() { require.NoError(t, n.Close(ctx)) })
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(n.Dir, "empty"), nil, 0o644))
	status, err := n.Status(ctx)
	require.NoError(t, err)
	uuid := status.Cards[0].UUID

	pod := 0
	for _, f := range faults {
		for _, s := range shapes {
			t.Run(f.name+"/"+s.name, func(t *testing.T) {
				var counts tally
				together := rearmed
				if f.single {
					together = 1
				}
				for range perCell / together {
					heal := f.arm(t, n)
					var wg sync.WaitGroup
					for range together {
						pod++
						name := "p" + strconv.Itoa(pod)
						wg.Go(func() { counts.add(attempt(ctx, t, n, f, s, uuid, name)) })
					}
					wg.Wait()
					heal()
				}
				t.Logf("%d refused, %d without a card, %d with its limits", counts.refused, counts.none, counts.limited)
				if f.mustWork {
					require.Zero(t, counts.refused)
				}
				if f.mustWork && s.annotations(uuid) != nil {
					require.Equal(t, perCell, counts.limited)
				}
			})
		}
	}
	// One reconciliation later the ledger is the truth again.
	n.Agent.Kill()
	require.NoError(t, n.StartAgent(ctx))
	status, err = n.Status(ctx)
	require.NoError(t, err)
	require.Empty(t, status.Containers)
}

// outcome is what became of one container.
type outcome int

const (
	refused outcome = iota
	noCard
	limited
)

type tally struct {
	mu                     sync.Mutex
	refused, none, limited int
}

func (c *tally) add(o outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o {
	case refused:
		c.refused++
	case noCard:
		c.none++
	case limited:
		c.limited++
	}
}

// attempt makes one container and looks what it has: by its spec, and by its own word.
func attempt(ctx context.Context, t *testing.T, n *harness.Node, f fault, s shape, uuid, name string) outcome {
	sandbox, err := n.RunPod(ctx, harness.Pod{Name: name, Annotations: s.annotations(uuid)})
	if err != nil {
		t.Errorf("run the pod: %v", err)
		return refused
	}
	defer func() {
		if err := sandbox.Remove(ctx); err != nil {
			t.Errorf("remove the pod: %v", err)
		}
	}()
	c := s.container(uuid, n.Dir)
	c.Name = "main"
	c.Command = []string{harness.WorkloadDir + "/meminfo"}
	if f.during != nil {
		// Somewhere in the request, which takes some milliseconds.
		defer time.AfterFunc(time.Duration(rand.IntN(8000))*time.Microsecond, func() { f.during(n) }).Stop()
	}
	id, err := sandbox.Create(ctx, c)
	if err != nil {
		return refused
	}
	spec, err := n.Spec(ctx, id)
	if err != nil {
		t.Errorf("read the spec: %v", err)
		return refused
	}
	hasCard, err := harness.LimitedOrNone(spec, n.StateDir())
	if err != nil {
		t.Errorf("container %s: %v", name, err)
	}
	if err := n.StartContainer(ctx, id); err != nil {
		t.Errorf("start: %v", err)
		return refused
	}
	code, err := n.WaitExit(ctx, id, 30*time.Second)
	if err != nil {
		t.Errorf("wait: %v", err)
		return refused
	}
	log, err := sandbox.Logs(c)
	if err != nil {
		t.Errorf("read its log: %v", err)
		return refused
	}
	v := harness.KeyValues(log)
	switch {
	case !hasCard && code == 4:
		return noCard
	case hasCard && code == 0 && v["device_count"] == "1" && v["device.0.total_bytes"] == strconv.Itoa(limitMiB<<20):
		return limited
	}
	t.Errorf("a card: %v, exit status %d: %s", hasCard, code, strings.TrimSpace(log))
	return refused
}
