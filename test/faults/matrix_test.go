//go:build faults

package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

const (
	// perCell is how many containers each cell of the matrix tries.
	perCell = 50
	// perPod is how many of them share a pod.
	perPod = 10
	// patience is longer than any request waits on a machine that is not stuck.
	patience = 10 * time.Second
)

func TestMatrix(t *testing.T) {
	// A privileged container gets all devices of the machine. With a GPU among them, every cell of such
	// containers would report a GPU that no fault has granted.
	own, err := filepath.Glob("/dev/nvidia*")
	require.NoError(t, err)
	require.Empty(t, own, "this machine has device nodes of GPUs; the matrix needs one without")
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			r := newRow(t, f)
			for _, s := range shapes {
				t.Run(s.name, func(t *testing.T) { r.cell(t, s) })
			}
		})
	}
}

// row is a node in one state of the plugin.
type row struct {
	fault
	node  *harness.Node
	place place
	pods  int
}

func newRow(t *testing.T, f fault) *row {
	ctx := context.Background()
	if f.timeout == 0 {
		f.timeout = patience
	}
	n, err := harness.NewNode(ctx, harness.NodeOptions{
		GPUs:       []string{"H200", "H200"},
		Containerd: harness.ContainerdOptions{RequestTimeout: f.timeout},
		// A claim that is released late does not keep other containers out.
		AgentArgs: []string{"--device-split-count=100"},
		NoAgent:   f.noAgent,
	})
	t.Cleanup(func() {
		if t.Failed() && n.Agent != nil {
			t.Logf("the agent's log:\n%s", n.Agent.LogTail(60))
		}
		if err := n.Close(ctx); err != nil {
			t.Errorf("close the node: %v", err)
		}
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(n.Dir, "empty"), nil, 0o644))
	// The simulated driver's first and second GPU.
	return &row{fault: f, node: n, place: place{
		own: "GPU-00000001-5151-4000-8000-000000000001", other: "GPU-00000002-5151-4000-8000-000000000002", dir: n.Dir,
	}}
}

// cell tries one kind of container, a pod of them at a time.
func (r *row) cell(t *testing.T, s shape) {
	ctx := context.Background()
	var counts tally
	for range perCell / perPod {
		if err := r.pod(ctx, s, &counts); err != nil {
			t.Error(err)
		}
	}
	t.Log(&counts)
	want := r.without
	if s.granted {
		want = r.granted
	}
	require.NoError(t, counts.check(want))
	require.NoError(t, harness.Until(ctx, time.Minute, func(context.Context) error { return nothingLeft(r.node) }))
}

// pod makes a pod's containers while the plugin is broken, and looks at what they
// are when it is whole again: a container's spec is made once.
func (r *row) pod(ctx context.Context, s shape, counts *tally) error {
	r.pods++
	annotations := maps.Clone(r.fault.pods)
	if annotations == nil {
		annotations = map[string]string{}
	}
	if s.granted {
		maps.Copy(annotations, grants(r.place.own, perPod))
	}
	sandbox, err := r.node.RunPod(ctx, harness.Pod{Name: fmt.Sprintf("p%d", r.pods), Annotations: annotations})
	if err != nil {
		return err
	}
	ids := make([]string, perPod)
	refused := make([]error, perPod)
	container := func(i int) harness.Container {
		c := s.container(r.place)
		c.Name, c.Command = containerName(i), []string{harness.WorkloadDir + "/meminfo"}
		return c
	}
	var errs []error
	for first := 0; first < perPod; first += r.together {
		heal, err := r.arm(ctx, r.node)
		if err != nil {
			errs = append(errs, fmt.Errorf("break the plugin: %w", err))
			break
		}
		each(first, r.together, func(i int) {
			create := func() { ids[i], refused[i] = sandbox.Create(ctx, container(i)) }
			if r.around == nil {
				create()
				return
			}
			r.around(ctx, r.node, i-first, create)
		})
		if err := heal(); err != nil {
			errs = append(errs, fmt.Errorf("make the plugin whole: %w", err))
			break
		}
	}
	found := make([]error, perPod)
	each(0, perPod, func(i int) {
		if ids[i] == "" && refused[i] == nil {
			return // never tried, which is reported above
		}
		var o outcome
		if refused[i] != nil {
			o, found[i] = refusal(refused[i])
		} else {
			o, found[i] = r.look(ctx, sandbox, container(i), ids[i])
		}
		if found[i] == nil {
			counts.add(o)
		} else {
			found[i] = fmt.Errorf("container %d of pod %s: %w", i, sandbox.Pod.Name, found[i])
		}
	})
	return errors.Join(append(append(errs, found...), sandbox.Remove(ctx))...)
}

// look runs a container to its end, and returns its outcome.
func (r *row) look(ctx context.Context, sandbox *harness.Sandbox, c harness.Container, id string) (outcome, error) {
	spec, err := r.node.Spec(ctx, id)
	if err != nil {
		return "", err
	}
	if err := r.node.StartContainer(ctx, id); err != nil {
		return "", fmt.Errorf("start: %w", err)
	}
	code, err := r.node.WaitExit(ctx, id, time.Minute)
	if err != nil {
		return "", err
	}
	log, err := sandbox.Logs(c)
	if err != nil {
		return "", err
	}
	return created(spec, r.node.StateDir(), r.place.own, code, log)
}

// nothingLeft returns an error while the ledger has a directory: all containers are gone.
func nothingLeft(n *harness.Node) error {
	entries, err := os.ReadDir(filepath.Join(n.StateDir(), "containers"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // there never was an agent
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("the ledger still has %s", strings.Join(names, ", "))
	}
	return err
}

// each calls do for some numbers at once, and waits.
func each(first, count int, do func(i int)) {
	var wg sync.WaitGroup
	for i := first; i < first+count; i++ {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}
