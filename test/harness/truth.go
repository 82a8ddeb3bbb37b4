package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/internal/procfs"
)

// Held is what the containers hold that are created or running by containerd: MiB of their first GPU by
// container id. It reads their specs, and nothing that the test recorded. A container that has a GPU without
// all of its limits is an error.
func (n *Node) Held(ctx context.Context) (map[string]int64, error) {
	list, err := n.CRI.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	held := map[string]int64{}
	for _, c := range list.Containers {
		if c.State != cri.ContainerState_CONTAINER_CREATED && c.State != cri.ContainerState_CONTAINER_RUNNING {
			continue
		}
		spec, err := n.Spec(ctx, c.Id)
		if err != nil {
			return nil, err
		}
		limited, err := LimitedOrNone(spec, n.MountedFrom())
		if err != nil {
			return nil, fmt.Errorf("container %s: %w", c.Id, err)
		}
		if !limited {
			continue
		}
		text := KeyValues(strings.Join(spec.Process.Env, "\n"))["CUDA_DEVICE_MEMORY_LIMIT_0"]
		if held[c.Id], err = strconv.ParseInt(strings.TrimSuffix(text, "m"), 10, 64); err != nil {
			return nil, fmt.Errorf("container %s: its memory limit: %w", c.Id, err)
		}
	}
	return held, nil
}

// Reserved is what the ledger has, in the form of Held, of entries that count.
func (n *Node) Reserved(ctx context.Context) (map[string]int64, error) {
	s, err := n.Status(ctx)
	if err != nil {
		return nil, err
	}
	reserved := map[string]int64{}
	for _, c := range s.Containers {
		switch {
		case c.State == "released":
		case c.State != "active" || len(c.Shares) == 0:
			return nil, fmt.Errorf("the entry of container %s is %s", c.ContainerID, c.State)
		default:
			reserved[c.ContainerID] = c.Shares[0].MemoryMiB
		}
	}
	return reserved, nil
}

// StateDirs are the names of all that is in the ledger's directory, hidden or not.
func (n *Node) StateDirs() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(n.StateDir(), "containers"))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// RestartAgent kills the agent and starts it again: one reconciliation.
func (n *Node) RestartAgent(ctx context.Context) error {
	n.Agent.Kill()
	return n.StartAgent(ctx)
}

// Processes are the ids of the processes with a matching command line: its program's name and its arguments,
// separated and surrounded by zero bytes.
func Processes(found func(program, args string) bool) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, file := range files {
		line, _ := os.ReadFile(file) // it may be gone
		program, args, _ := strings.Cut(string(line), "\x00")
		if program == "" || !found(filepath.Base(program), "\x00"+args) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// shims are the processes that watch the containers of a daemon, which they have in their
// command line by its socket.
func shims(socket string) ([]int, error) {
	return Processes(func(program, args string) bool {
		return strings.HasPrefix(program, "containerd-shim") && strings.Contains(args, "\x00"+socket+"\x00")
	})
}

// killShims ends the shims that a daemon which was killed at the wrong moment has lost track of, and first the containers below
// them, which go on without a shim.
func killShims(socket string) error {
	pids, err := shims(socket)
	all, allErr := procfs.FS("/proc").All()
	var containers []int
	for _, pid := range all {
		if s, err := procfs.FS("/proc").Stat(strconv.Itoa(pid)); err == nil && slices.Contains(pids, s.Parent) {
			containers = append(containers, pid)
		}
	}
	return errors.Join(err, allErr, killAll(append(containers, pids...)))
}

func killAll(pids []int) error {
	var errs []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
