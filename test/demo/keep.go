package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
)

// kept links to the directory of the node that is up. Only root writes there. The test has a link of its own.
var kept = cmp.Or(os.Getenv("DEMO_LINK"), "/run/gpuslice-demo")

// leave makes the files for looking around. Their paths go through the link: processes that have the node's own directory
// in their environment would count as the node's.
func (d *demo) leave() error {
	build, err := harness.Artefact("bin")
	if err != nil {
		return err
	}
	env := fmt.Sprintf(`export PATH=%s:%s:$PATH
export GPUSLICE_STATE_DIR=%s/run
export CONTAINERD_ADDRESS=%[3]s/c/c.sock CONTAINERD_NAMESPACE=k8s.io
export SIMGPU_STATE=%[3]s/sim/state
`, build, d.node.Tools(), kept)
	if err := os.WriteFile(filepath.Join(d.node.Dir, "env"), []byte(env), 0o644); err != nil {
		return err
	}
	return os.Symlink(d.node.Dir, kept)
}

// hints are the commands for the node that is up.
func (d *demo) hints() string {
	own := ""
	if d.node.HasCtr() {
		own = fmt.Sprintf(`A container of your own, with a share:
  ctr run --rm --runc-binary "$(command -v gpuslice-runtime)" --env GPUSLICE_MEMORY=4GiB %s mine %s/meminfo
`, harness.WorkloadImage, harness.WorkloadDir)
	}
	return fmt.Sprintf(`
"train" and "infer" go on. Look around, as root:
  . %s/env
  gpuslice status
  gpuslice top
  gpuslice describe container default/train
The node's page: http://%s/
%sTake everything down:
  make demo DEMO=stop
`, kept, d.page, own)
}

// takeDown removes the node that an earlier call left up.
func takeDown() error {
	dir, err := os.Readlink(kept)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("no node is up: make demo DEMO=keep brings one up")
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) { // an earlier call has removed the rest
		return os.Remove(kept)
	}
	node, err := harness.Attach(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := errors.Join(removeTasks(ctx, node), node.Close(ctx)); err != nil {
		return fmt.Errorf("take the node down: %w", err)
	}
	if err := os.Remove(kept); err != nil {
		return err
	}
	fmt.Println("Everything is stopped and removed.")
	return nil
}

// removeTasks ends all containers, also those of the user, which are in no pod. After the end of containerd, Close does it.
func removeTasks(ctx context.Context, node *harness.Node) error {
	if !node.Runs() {
		return nil
	}
	if err := node.RemoveAllPods(ctx); err != nil || !node.HasCtr() {
		return err
	}
	tasks, err := node.Ctr(ctx, "tasks", "list", "--quiet")
	errs := []error{err}
	for _, name := range strings.Fields(tasks) {
		_, err := node.Ctr(ctx, "tasks", "delete", "--force", name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
