package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Machine is a machine with simulated GPUs and a state directory for gpuslice, and with
// nothing that runs.
type Machine struct {
	// Dir holds everything; it is short, and removed at Close.
	Dir string

	simctl string
	// seen is the state directory as the node's programs see it, where that is another path.
	seen string
}

// NewMachine makes a machine with the given profiles of GPUs. One that is returned has
// to be closed, also after an error.
func NewMachine(ctx context.Context, gpus ...string) (*Machine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("containers are made as root: run this as root")
	}
	simctl, err := Artefact("sim", "simctl")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "gs")
	if err != nil {
		return nil, err
	}
	m := &Machine{Dir: dir, simctl: simctl}
	// The daemons' sockets and the limiter are reached from containers' runtimes.
	if err := os.Chmod(dir, 0o711); err != nil {
		return m, err
	}
	if err := m.makeGPUs(ctx, gpus); err != nil {
		return m, err
	}
	return m, MountTmpfs(m.StateDir(), 256)
}

// makeGPUs makes the simulated driver's state, device nodes and CDI spec.
func (m *Machine) makeGPUs(ctx context.Context, gpus []string) error {
	for _, sub := range []string{"sim", "dev", "cdi"} {
		if err := os.Mkdir(filepath.Join(m.Dir, sub), 0o755); err != nil {
			return err
		}
	}
	initArgs := []string{"init"}
	for _, c := range gpus {
		initArgs = append(initArgs, "--gpu", c)
	}
	for _, args := range [][]string{
		initArgs,
		{"devnodes", "--dev-dir", filepath.Join(m.Dir, "dev")},
		{"cdi", "--lib-dir", filepath.Dir(m.simctl), "--dev-dir", filepath.Join(m.Dir, "dev"), "--out", filepath.Join(m.CDIDir(), "nvidia.yaml")},
	} {
		if _, err := m.Simctl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// SimState is the simulated driver's state file.
func (m *Machine) SimState() string { return filepath.Join(m.Dir, "sim", "state") }

// CDIDir is the directory of CDI specs.
func (m *Machine) CDIDir() string { return filepath.Join(m.Dir, "cdi") }

// StateDir is gpuslice's state directory, on a tmpfs.
func (m *Machine) StateDir() string { return filepath.Join(m.Dir, "run") }

// SeenAt sets the path at which the node's programs see the state directory.
func (m *Machine) SeenAt(path string) { m.seen = path }

// MountedFrom is the state directory as containers' mounts name it.
func (m *Machine) MountedFrom() string {
	if m.seen != "" {
		return m.seen
	}
	return m.StateDir()
}

// LibraryDir is the directory that the limiter is installed to.
func (m *Machine) LibraryDir() string { return filepath.Join(m.Dir, "lib") }

// Simctl runs simctl on the machine's GPUs.
func (m *Machine) Simctl(ctx context.Context, args ...string) (string, error) {
	return Run(ctx, nil, m.simctl, append([]string{"--state", m.SimState()}, args...)...)
}

// Status is what `gpuslice status -o json` prints, as far as tests look at it.
type Status struct {
	GPUs []struct {
		UUID             string `json:"uuid"`
		MemoryMiB        int64  `json:"memoryMiB"`
		GrantedMemoryMiB int64  `json:"grantedMemoryMiB"`
		GrantedCores     int    `json:"grantedCores"`
		Containers       int    `json:"containers"`
	} `json:"gpus"`
	Containers []struct {
		ContainerID string `json:"containerID"`
		Pod         string `json:"pod"`
		Container   string `json:"container"`
		State       string `json:"state"`
		Shares      []struct {
			UUID      string `json:"uuid"`
			MemoryMiB int64  `json:"memoryMiB"`
			Cores     int    `json:"cores"`
			UsedBytes uint64 `json:"usedBytes"`
			// ResidueBytes is what the driver sees beyond that.
			ResidueBytes uint64 `json:"residueBytes"`
			Processes    int    `json:"processes"`
		} `json:"shares"`
	} `json:"containers"`
}

// Status runs gpuslice status.
func (m *Machine) Status(ctx context.Context) (Status, error) {
	out, err := m.CLI(ctx, "status", "-o", "json")
	if err != nil {
		return Status{}, err
	}
	var s Status
	return s, json.Unmarshal([]byte(out), &s)
}

// CLI runs gpuslice on the machine's state directory.
func (m *Machine) CLI(ctx context.Context, args ...string) (string, error) {
	path, err := Artefact("bin", "gpuslice")
	if err != nil {
		return "", err
	}
	return Run(ctx, nil, path, append(args, "--state-dir", m.StateDir())...)
}

// Close removes everything and reports what did not go.
func (m *Machine) Close() error {
	err := errors.Join(RemoveRemaining(m.Dir), unmountBelow(m.Dir))
	points, mountErr := MountsBelow(m.Dir)
	if len(points) > 0 {
		mountErr = fmt.Errorf("mounts are left: %q", points)
	}
	return errors.Join(err, mountErr, os.RemoveAll(m.Dir))
}
