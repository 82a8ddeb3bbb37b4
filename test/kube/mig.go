package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/test/harness"
)

// ShowCapabilities gives the agent what a driver with MIG has in /proc, and this machine's kernel has not (harness.WriteDriverFiles). They
// are mounts in the agent's container: a container that is started later has none.
func (c *Cluster) ShowCapabilities(ctx context.Context, gpus ...int) error {
	// The container has this directory.
	shared, inside := filepath.Dir(c.SimState()), simulated+"/state"
	if err := harness.WriteDriverFiles(filepath.Join(shared, "proc"), gpus...); err != nil {
		return err
	}
	root, err := harness.GlibcRoot()
	if err != nil {
		return err
	}
	busybox, err := os.ReadFile(root.Files["bin/busybox"])
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(shared, "proc", "busybox"), busybox, 0o755); err != nil {
		return err
	}
	return harness.Until(ctx, patience, func(ctx context.Context) error {
		pid, err := c.agentPID(ctx)
		if err != nil {
			return err
		}
		for _, name := range []string{"devices", "driver"} {
			if _, err := harness.Run(ctx, nil, "nsenter", "--mount=/proc/"+strconv.Itoa(pid)+"/ns/mnt", "--",
				inside+"/proc/busybox", "mount", "--bind", inside+"/proc/"+name, "/proc/"+name); err != nil {
				return err
			}
		}
		return nil
	})
}

// agentPID is the agent's process. The pod's status can still have the container before.
func (c *Cluster) agentPID(ctx context.Context) (int, error) {
	agents, err := podsOf(ctx, c.API, "agent")
	if err != nil {
		return 0, err
	}
	for i := range agents {
		for _, s := range agents[i].Status.ContainerStatuses {
			if agents[i].Spec.NodeName == c.name && s.State.Running != nil {
				return harness.ContainerPID(c.Containerd, strings.TrimPrefix(s.ContainerID, "containerd://"))
			}
		}
	}
	return 0, fmt.Errorf("no agent runs on %s", c.name)
}
