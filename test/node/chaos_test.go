//go:build root

package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// The size of the chaos: containers created, restarts of containerd meanwhile, and
// how many create at once.
const (
	chaosCreations = 300
	chaosRestarts  = 6
	chaosWorkers   = 3
)

// chaosMiB is what the chaos' containers are granted.
const chaosMiB = 1000

// chaosSeedVariable names the seed of an earlier run. It repeats what was done, not the
// moments at which it met the kernel.
const chaosSeedVariable = "GPUSLICE_CHAOS_SEED"

// chaosPatience is how long a thing may take that only has to happen. It is no
// measure: a machine that is shared may be slow.
const chaosPatience = time.Minute

// chaos is one run.
type chaos struct {
	*harness.Node
	t    *testing.T
	uuid string
	seed uint64

	begun    atomic.Int64        // creations
	restarts map[int64]bool      // the creations at which containerd is restarted
	restart  chan struct{}       // requests a restart
	mu       sync.Mutex          //
	tally    map[string]int      // what became of the containers
	staying  map[string]struct{} // containers that run on
}

// random is a source of its own for each goroutine, by a number.
func (c *chaos) random(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(c.seed, stream)) }

// kill -9 of the agent at random moments while containers start and end, with restarts of containerd in
// between, by SIGTERM or SIGKILL: no container has a GPU without limits meanwhile, and one reconciliation
// later the ledger has the containers that containerd runs.
func TestChaos(t *testing.T) {
	ctx := context.Background()
	c := &chaos{
		Node: newNode(t, harness.NodeOptions{AgentArgs: []string{"--device-split-count=200"}}), t: t,
		seed: rand.Uint64(), restart: make(chan struct{}, chaosRestarts),
		restarts: map[int64]bool{}, tally: map[string]int{}, staying: map[string]struct{}{},
	}
	if text := os.Getenv(chaosSeedVariable); text != "" {
		var err error
		c.seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, chaosSeedVariable)
	}
	t.Logf("%s=%d does the same again", chaosSeedVariable, c.seed)
	c.uuid = gpu(t, c.Node, 0)
	r := c.random(0)
	for len(c.restarts) < chaosRestarts {
		c.restarts[1+r.Int64N(chaosCreations)] = true
	}

	stop := make(chan struct{})
	var breakers, workers sync.WaitGroup
	breakers.Go(func() { c.killAgents(ctx, c.random(1), stop) })
	breakers.Go(func() { c.restartContainerds(ctx, c.random(2)) })
	for i := range uint64(chaosWorkers) {
		workers.Go(func() { c.work(ctx, c.random(3+i), fmt.Sprintf("w%d", i)) })
	}
	workers.Wait()
	close(stop)
	close(c.restart)
	breakers.Wait()
	t.Logf("%v, %d stay", c.tally, len(c.staying))
	for _, what := range []string{"with its limits", "without a GPU", "agents killed"} {
		require.NotZero(t, c.tally[what], what)
	}
	require.NotEmpty(t, c.staying, "no container runs with a reservation that could be lost")
	require.Equal(t, chaosRestarts, c.tally["containerds restarted"])
	require.False(t, t.Failed())

	require.NoError(t, c.RestartAgent(ctx), "one reconciliation")
	c.requireTruth(ctx)
	c.requireCreation(ctx)
	require.NoError(t, harness.Until(ctx, chaosPatience, c.RemoveAllPods))
	requireNothingLeft(t, c.Node)
	if os.Getenv(harness.CRIRuntimeEnv) == "cri-o" {
		return // it doesn't remove what it was killed in
	}
	tasks, err := os.ReadDir(c.Bundles())
	require.NoError(t, err)
	for _, task := range tasks {
		// A containerd that is killed while it deletes a task's directory leaves it hidden.
		require.True(t, strings.HasPrefix(task.Name(), "."), "task %s is left", task.Name())
	}
}

// requireTruth checks that the ledger is what containerd runs, and the directories too.
func (c *chaos) requireTruth(ctx context.Context) {
	held, err := c.Held(ctx)
	require.NoError(c.t, err)
	reserved, err := c.Reserved(ctx)
	require.NoError(c.t, err)
	require.Equal(c.t, held, reserved, "what containerd runs, and what is reserved")
	for id := range c.staying {
		require.Contains(c.t, held, id, "a container that was to stay")
	}
	dirs, err := c.StateDirs()
	require.NoError(c.t, err)
	ids := []string{}
	for id := range held {
		ids = append(ids, id)
	}
	require.ElementsMatch(c.t, ids, dirs, "directories")
	s, err := c.Status(ctx)
	require.NoError(c.t, err)
	require.EqualValues(c.t, chaosMiB*len(held), s.GPUs[0].GrantedMemoryMiB)
	require.Equal(c.t, len(held), s.GPUs[0].Containers)
}

// requireCreation checks that containers can be created, with a grant and without one.
func (c *chaos) requireCreation(ctx context.Context) {
	for name, annotations := range map[string]map[string]string{"after-granted": hami(c.uuid, chaosMiB, 0), "after-ungranted": nil} {
		id := start(c.t, run(c.t, c.Node, harness.Pod{Name: name, Annotations: annotations}), harness.Container{Name: "main", Image: harness.GreedyImage})
		stdout, stderr, code, err := c.Exec(ctx, id, workload("meminfo"))
		require.NoError(c.t, err)
		require.NoError(c.t, asExpected(annotations != nil, code, stdout), "%s: %s", name, stderr)
	}
}

// killAgents kills the agent again and again: at times before it is connected.
func (c *chaos) killAgents(ctx context.Context, r *rand.Rand, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(r.IntN(400)) * time.Millisecond):
		}
		c.Agent.Kill()
		c.count("agents killed")
		start := c.StartAgent
		if r.IntN(4) == 0 {
			start = func(context.Context) error { return c.LaunchAgent() }
		}
		if err := start(ctx); err != nil {
			c.t.Errorf("start the agent again: %v", err)
			return
		}
	}
}

// restartContainerds restarts containerd at each request, and ends a container while no agent listens.
func (c *chaos) restartContainerds(ctx context.Context, r *rand.Rand) {
	for range c.restart {
		time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond) // somewhere in a creation
		if r.IntN(2) == 0 {
			c.Containerd.Kill()
		} else if err := c.Containerd.Stop(); err != nil {
			c.t.Logf("%v", err) // it is killed then
		}
		c.mu.Lock()
		for id := range c.staying {
			if len(c.staying) < 3 {
				break
			}
			if err := harness.KillContainer(c.Containerd, id); err != nil && !errors.Is(err, syscall.ESRCH) {
				c.t.Errorf("end container %s: %v", id, err)
			}
			delete(c.staying, id)
			break
		}
		c.mu.Unlock()
		if err := c.Containerd.Start(ctx); err != nil {
			c.t.Errorf("start containerd again: %v", err)
			return
		}
		c.count("containerds restarted")
	}
}

// answers reports whether containerd answers.
func (c *chaos) answers(ctx context.Context) error {
	_, err := c.CRI.Status(ctx, &cri.StatusRequest{})
	return err
}

func (c *chaos) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally[what]++
}

// begin reports whether one more container is to be created.
func (c *chaos) begin() bool {
	number := c.begun.Add(1)
	if c.restarts[number] {
		c.restart <- struct{}{}
	}
	return number <= chaosCreations
}

// work runs pods one after the other. Each makes a few attempts of its container, as
// the kubelet does with one that ends, and is removed; some stay.
func (c *chaos) work(ctx context.Context, r *rand.Rand, name string) {
	for i := 0; !c.t.Failed() && c.begun.Load() < chaosCreations; i++ {
		var annotations map[string]string
		if r.IntN(4) > 0 {
			annotations = hami(c.uuid, chaosMiB, 0)
		}
		attempts, stays := 1+r.IntN(4), annotations != nil && r.IntN(3) == 0
		pod, err := c.RunPod(ctx, harness.Pod{Name: fmt.Sprintf("%s-%d", name, i), Annotations: annotations})
		if err != nil {
			// containerd was not there. What is left of the pod goes in the end.
			c.count("pods that did not start")
			if !assert.NoError(c.t, harness.Until(ctx, chaosPatience, c.answers)) {
				return
			}
			continue
		}
		kept := ""
		for attempt := range attempts {
			if !c.begin() {
				break
			}
			k := harness.Container{Name: "main", Attempt: uint32(attempt), Image: harness.GreedyImage}
			if !stays || attempt < attempts-1 {
				k.Command = []string{workload("meminfo")}
			}
			id, err := c.attempt(ctx, pod, k)
			if !assert.NoError(c.t, err, "pod %s attempt %d", pod.Pod.Name, attempt) {
				return
			}
			if k.Command == nil {
				kept = id
			}
		}
		if kept != "" {
			c.mu.Lock()
			c.staying[kept] = struct{}{}
			c.mu.Unlock()
			continue
		}
		// As often as it takes: containerd may be down.
		if !assert.NoError(c.t, harness.Until(ctx, chaosPatience, pod.Remove)) {
			return
		}
	}
}

// attempt makes one container and looks what it has: by its spec, and by its own word
// if it has one. It returns the id of one with a GPU that was started.
func (c *chaos) attempt(ctx context.Context, pod *harness.Sandbox, k harness.Container) (string, error) {
	id, err := pod.Create(ctx, k)
	if err != nil {
		c.count("refused")
		return "", nil
	}
	granted := pod.Pod.Annotations != nil
	var limited bool
	err = harness.Until(ctx, chaosPatience, func(ctx context.Context) error {
		spec, err := c.Spec(ctx, id)
		if err == nil {
			limited, err = harness.LimitedOrNone(spec, c.StateDir())
		}
		return err
	})
	switch {
	case err != nil:
		return "", err
	case limited && !granted:
		return "", errors.New("a GPU without a grant")
	case limited:
		c.count("with its limits")
	default:
		c.count("without a GPU")
	}
	if err := c.StartContainer(ctx, id); err != nil {
		c.count("not started")
		return "", nil // containerd was not there
	}
	if k.Command == nil && limited {
		return id, nil
	}
	if k.Command == nil {
		return "", nil
	}
	return "", c.askInside(ctx, pod, k, id, limited)
}

// askInside waits for the container's end and reads what it saw.
func (c *chaos) askInside(ctx context.Context, pod *harness.Sandbox, k harness.Container, id string, limited bool) error {
	code, log, err := pod.Ended(ctx, k, id, chaosPatience)
	if err != nil {
		return err
	}
	if log == "" || code > 4 {
		c.count("not heard of") // containerd was not there when it ended
		return nil
	}
	return asExpected(limited, code, log)
}

// asExpected checks what meminfo saw: the GPU with its limit, or no driver.
func asExpected(limited bool, code int, log string) error {
	v := harness.KeyValues(log)
	if limited && code == 0 && v["device_count"] == "1" && v["device.0.total_bytes"] == strconv.Itoa(chaosMiB*mib) || !limited && code == 4 {
		return nil
	}
	return fmt.Errorf("a GPU: %v, and the program saw (exit status %d): %s", limited, code, log)
}
