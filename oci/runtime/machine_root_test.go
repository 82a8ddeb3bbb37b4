//go:build root

package ociruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/harness"
)

// The simulated GPUs' names: an H200 and a T4.
const (
	h200 = "GPU-00000001-5151-4000-8000-000000000001"
	t4   = "GPU-00000002-5151-4000-8000-000000000002"
)

// machine is a host with simulated GPUs, real runc, and no agent.
type machine struct {
	testing.TB
	dir    string
	rootfs string
	ledger *ledger.Ledger
}

// newMachine makes one, as root.
func newMachine(t testing.TB, config string) *machine {
	t.Helper()
	require.Zero(t, os.Geteuid(), "containers are made as root: run this as root")
	dir, err := os.MkdirTemp("", "gsr") // short: the name of a test is too long for a socket
	require.NoError(t, err)
	m := &machine{TB: t, dir: dir}
	t.Cleanup(func() {
		points, err := harness.MountsBelow(dir)
		require.NoError(t, err)
		for _, p := range points {
			require.NoError(t, unix.Unmount(p, unix.MNT_DETACH))
		}
		require.NoError(t, os.RemoveAll(dir))
		// Cgroups of a killed runc.
		groups, err := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(dir) + "-*")
		require.NoError(t, err)
		for _, group := range groups {
			require.NoError(t, os.Remove(group), "a process is left")
		}
	})
	require.NoError(t, os.Chmod(dir, 0o711))
	require.NoError(t, harness.MountTmpfs(m.path("run"), 64))
	for _, sub := range []string{"sim", "dev", "cdi", "root"} {
		require.NoError(t, os.Mkdir(m.path(sub), 0o755))
	}
	simctl := m.artefact("sim", "simctl")
	for _, args := range [][]string{
		{"init", "--gpu", "H200", "--gpu", "T4"},
		{"devnodes", "--dev-dir", m.path("dev")},
		{"cdi", "--lib-dir", filepath.Dir(simctl), "--dev-dir", m.path("dev"), "--out", m.path("cdi/nvidia.yaml")},
	} {
		_, err := harness.Run(context.Background(), nil, simctl, append([]string{"--state", m.path("sim/state")}, args...)...)
		require.NoError(t, err)
	}
	library := m.artefact("lib", "libvgpu.so")
	_, _, err = oci.InstallLibrary(library, m.path("lib"))
	require.NoError(t, err)
	_, err = oci.InstallStubs(library, m.path("lib"))
	require.NoError(t, err)
	write(t, m.path("runtime.yaml"), fmt.Sprintf("stateDir: %s\nlibraryDir: %s\ncdiSpecDirs: [%s]\nnvmlLibrary: %s\nruntimes: [runc]\n%s",
		m.path("run"), m.path("lib"), m.path("cdi"), m.artefact("sim", "libnvidia-ml.so.1"), config), 0o644)
	m.ledger, err = ledger.Open(m.path("run"))
	require.NoError(t, err)
	t.Cleanup(func() { m.ledger.Close() })
	m.makeRootfs()
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) artefact(elem ...string) string {
	m.Helper()
	path, err := harness.Artefact(elem...)
	require.NoError(m, err)
	return path
}

// makeRootfs makes a root file system: busybox, the C library, and a CUDA program.
func (m *machine) makeRootfs() {
	m.rootfs = m.path("rootfs")
	for _, dir := range []string{"proc", "dev", "sys", "etc", "tmp", "usr/local"} {
		require.NoError(m, os.MkdirAll(filepath.Join(m.rootfs, dir), 0o755))
	}
	for name, source := range map[string]string{
		"bin/busybox":                           "/bin/busybox",
		harness.Loader[1:]:                      harness.Loader,
		"lib/" + harness.Triplet + "/libc.so.6": "/lib/" + harness.Triplet + "/libc.so.6",
		"opt/meminfo":                           m.artefact("workloads", "meminfo"),
	} {
		data, err := os.ReadFile(source)
		require.NoError(m, err)
		write(m, filepath.Join(m.rootfs, name), string(data), 0o755)
	}
	for _, applet := range []string{"sh", "sleep", "cat", "env", "true"} {
		require.NoError(m, os.Symlink("busybox", filepath.Join(m.rootfs, "bin", applet)))
	}
}

// bundle makes a container's bundle. Its program is args, or a long sleep.
func (m *machine) bundle(id string, env []string, args ...string) string {
	m.Helper()
	dir := m.path("bundles/" + id)
	require.NoError(m, os.MkdirAll(dir, 0o755))
	if _, err := os.Stat(filepath.Join(dir, configName)); err == nil {
		require.NoError(m, os.Remove(filepath.Join(dir, configName)))
	}
	_, err := harness.Run(context.Background(), nil, "runc", "spec", "-b", dir)
	require.NoError(m, err)
	m.change(dir, func(spec *rspec.Spec) {
		spec.Root = &rspec.Root{Path: m.rootfs}
		spec.Process.Terminal = false
		if spec.Process.Args = args; len(args) == 0 {
			spec.Process.Args = []string{"sleep", "600"}
		}
		spec.Process.Env = append(spec.Process.Env, env...)
		spec.Linux.CgroupsPath = "/" + filepath.Base(m.dir) + "-" + id
	})
	return dir
}

// change rewrites a bundle's config.
func (m *machine) change(bundle string, change func(*rspec.Spec)) {
	m.Helper()
	spec := m.spec(bundle)
	change(spec)
	data, err := json.Marshal(spec)
	require.NoError(m, err)
	write(m, filepath.Join(bundle, configName), string(data), 0o644)
}

// spec reads a bundle's config.
func (m *machine) spec(bundle string) *rspec.Spec {
	m.Helper()
	spec := &rspec.Spec{}
	require.NoError(m, json.Unmarshal([]byte(read(m, filepath.Join(bundle, configName))), spec))
	return spec
}

// command is a call of the wrapper, as the containerd shim makes it.
func (m *machine) command(env []string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(m, err)
	cmd := exec.Command(self, append([]string{"--root", m.path("root"), "--log", m.path("log.json"), "--log-format", "json"}, args...)...)
	cmd.Env = append(os.Environ(), actEnv+"=1", configEnv+"="+m.path("runtime.yaml"), "SIMGPU_STATE="+m.path("sim/state"),
		"PATH="+filepath.Dir(m.artefact("bin", "gpuslice"))+":"+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// run calls the wrapper and returns what it wrote to both outputs. They are a file: a
// pipe would be waited for until the container ends.
func (m *machine) run(args ...string) (string, error) {
	m.Helper()
	return m.runWith(nil, args...)
}

func (m *machine) runWith(env []string, args ...string) (string, error) {
	m.Helper()
	out, err := os.CreateTemp(m.dir, "out")
	require.NoError(m, err)
	defer out.Close()
	defer os.Remove(out.Name())
	cmd := m.command(env, args...)
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	return read(m, out.Name()), err
}

// must is run of what has to succeed.
func (m *machine) must(args ...string) string {
	m.Helper()
	out, err := m.run(args...)
	require.NoError(m, err, out)
	return out
}

// create makes a container with a request.
func (m *machine) create(id string, env ...string) (string, error) {
	m.Helper()
	return m.run("create", "--bundle", m.bundle(id, env), id)
}

// remove removes a container as docker does, at the end of the test at the latest.
func (m *machine) remove(id string) {
	m.Helper()
	_, err := m.run("delete", "--force", id)
	require.NoError(m, err)
}

// claimed returns the IDs of active claims and the usage of the GPUs. No other directory may exist.
func (m *machine) claimed() (ids []string, usage map[string]ledger.Usage) {
	m.Helper()
	now, err := m.ledger.Snapshot(context.Background())
	require.NoError(m, err)
	for _, e := range now.Entries {
		require.Equal(m, ledger.StateActive, e.State, e.ContainerID)
		ids = append(ids, e.ContainerID)
	}
	entries, err := os.ReadDir(m.path("run/containers"))
	require.NoError(m, err)
	require.Len(m, entries, len(ids), "%v", entries)
	return ids, now.GPUs
}

// values reads the lines key=value.
func values(out string) map[string]string { return harness.KeyValues(out) }

// lastLog is the last message of the log.
func (m *machine) lastLog() string {
	m.Helper()
	lines := strings.Split(read(m, m.path("log.json")), "\n")
	var entry struct{ Level, Msg string }
	require.NoError(m, json.NewDecoder(bytes.NewReader([]byte(lines[len(lines)-1]))).Decode(&entry))
	require.Equal(m, "error", entry.Level)
	return entry.Msg
}
