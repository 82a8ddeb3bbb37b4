package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/limiter"
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

// NewMachine makes a machine with the given profiles of GPUs; with none it has no driver either. One that is returned has
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
	if len(gpus) == 0 {
		return nil
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
		Members     []struct {
			ContainerID string `json:"containerID"`
		} `json:"members"`
		Shares []struct {
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

// MountsBelow lists the mount points at dir and below it, deepest first.
func MountsBelow(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		// The fifth field is the mount point; see proc_pid_mountinfo(5).
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			points = append(points, fields[4])
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(points)))
	return points, nil
}

// ClaimMounts are the mounts below a state directory, without the one of all turn files, which stays. It is an error if
// one of these files is left that is not a slice's.
func ClaimMounts(stateDir string) ([]string, error) {
	mounts, err := MountsBelow(stateDir)
	errs := []error{err}
	errs = append(errs, limiter.EachTurn(stateDir, func(gpu string, id limiter.TurnID) {
		if !id.OfSlice() {
			errs = append(errs, fmt.Errorf("turn file %s is left", limiter.TurnPath(stateDir, gpu, id)))
		}
	}))
	mounts = slices.DeleteFunc(mounts, func(at string) bool { return at == vgpufs.TurnsDir(stateDir) })
	return mounts, errors.Join(errs...)
}

// LoseClaims simulates the loss of a ledger's file system: it removes the claims, and containers
// keep their mounts.
func LoseClaims(stateDir string) error {
	claims := filepath.Join(stateDir, "containers")
	if err := unmountBelow(claims); err != nil {
		return err
	}
	return os.RemoveAll(claims)
}

func unmountBelow(dir string) error {
	points, err := MountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// MountTmpfs mounts a tmpfs of at most sizeMiB at dir.
func MountTmpfs(dir string, sizeMiB int) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%dm,mode=0711", sizeMiB)); err != nil {
		return fmt.Errorf("mount a tmpfs at %s (as root): %w", dir, err)
	}
	// Shared, as with systemd: mounts in it propagate to containers that have it mounted.
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make the mount %s shared: %w", dir, err)
	}
	return nil
}
