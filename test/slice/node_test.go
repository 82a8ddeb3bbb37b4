//go:build root

// Package slice tests the operator's slices, gpuslice.io/slice=NAME, from the config to
// a container that real runc makes: gpuslice cdi generate writes the spec, CDI's library
// puts it into a container as docker and podman do, and its hooks are the built
// gpuslice-runtime's. The GPU is simulated.
package slice

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/vgpufstest"
)

// node is a machine with simulated GPUs and the operator's config.
type node struct {
	t   *testing.T
	dir string
}

func artefact(t *testing.T, elem ...string) string {
	t.Helper()
	path, err := harness.Artefact(elem...)
	require.NoError(t, err)
	return path
}

// newNode makes a node. The config's slices are YAML below "slices:".
func newNode(t *testing.T, gpus []string, slices string) *node {
	t.Helper()
	require.Zero(t, os.Geteuid(), "this suite makes containers: run it as root")
	dir, err := os.MkdirTemp("", "gpuslice-slice-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	t.Cleanup(func() { require.NoError(t, harness.RemoveRemaining(dir)) })
	n := &node{t, dir}
	require.NoError(t, harness.MountTmpfs(n.path("run"), 64))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(n.path("run"), unix.MNT_DETACH)) })
	vgpufstest.Unmount(t, n.path("run"))
	require.NoError(t, os.Chmod(dir, 0o711))
	for _, sub := range []string{"sim", "dev", "cdi"} {
		require.NoError(t, os.Mkdir(n.path(sub), 0o755))
	}
	t.Setenv("SIMGPU_STATE", n.path("sim/state"))
	initArgs := []string{"init"}
	for _, c := range gpus {
		initArgs = append(initArgs, "--gpu", c)
	}
	simctl := artefact(t, "sim", "simctl")
	for _, args := range [][]string{
		initArgs,
		{"devnodes", "--dev-dir", n.path("dev")},
		{"cdi", "--lib-dir", filepath.Dir(simctl), "--dev-dir", n.path("dev"), "--out", n.path("cdi/nvidia.yaml")},
	} {
		out, err := exec.Command(simctl, append([]string{"--state", n.path("sim/state")}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	n.configure("auto", slices)
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// configure writes the operator's config.
func (n *node) configure(mode, slices string) {
	n.t.Helper()
	config := "stateDir: " + n.path("run") + "\n" +
		"libraryDir: " + n.path("lib") + "\n" +
		"nvmlLibrary: " + artefact(n.t, "sim", "libnvidia-ml.so.1") + "\n" +
		"cdiSpecDirs: [" + n.path("cdi") + "]\n" +
		"limiterMode: " + mode + "\n" +
		"slices:\n" + slices
	require.NoError(n.t, os.WriteFile(n.path("runtime.yaml"), []byte(config), 0o644))
}

// generate runs gpuslice cdi generate.
func (n *node) generate(args ...string) (out string, status int) {
	n.t.Helper()
	args = append([]string{"cdi", "generate", "--config", n.path("runtime.yaml"), "--output-dir", n.path("cdi")}, args...)
	return run(n.t, nil, artefact(n.t, "bin", "gpuslice"), args...)
}

// mustGenerate is generate that works.
func (n *node) mustGenerate(args ...string) string {
	n.t.Helper()
	out, status := n.generate(args...)
	require.Zero(n.t, status, out)
	return out
}

// run runs a program to its end.
func run(t *testing.T, stdin []byte, program string, args ...string) (out string, status int) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	data, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return string(data), exit.ExitCode()
	}
	require.NoError(t, err, "%s", data)
	return string(data), 0
}

// container is one that runc makes.
type container struct {
	n      *node
	id     string
	bundle string
}

// glibc is the image of most tests.
func (n *node) glibc() harness.Root {
	n.t.Helper()
	root, err := harness.GlibcRoot()
	require.NoError(n.t, err)
	return root
}

// container makes the bundle of a container that has CDI devices, as an engine does.
func (n *node) container(id string, image harness.Root, devices []string, command ...string) *container {
	n.t.Helper()
	c := &container{n, "gpuslice-" + filepath.Base(n.dir) + "-" + id, n.path("bundle-" + id)}
	require.NoError(n.t, os.Mkdir(c.bundle, 0o755))
	require.NoError(n.t, image.Write(filepath.Join(c.bundle, "rootfs")))
	out, status := run(n.t, nil, "runc", "spec", "--bundle", c.bundle)
	require.Zero(n.t, status, out)
	c.edit(func(spec *rspec.Spec) {
		spec.Process.Terminal = false
		spec.Process.Args = command
		spec.Process.Rlimits = nil // which this test may not be let to set
		spec.Linux.CgroupsPath = filepath.Join("/", filepath.Base(n.dir), c.id)
		cache, err := cdi.NewCache(cdi.WithSpecDirs(n.path("cdi")), cdi.WithAutoRefresh(false))
		require.NoError(n.t, err)
		_, err = cache.InjectDevices(spec, devices...)
		require.NoError(n.t, err)
	})
	n.t.Cleanup(func() { run(n.t, nil, "runc", "delete", "--force", c.id) })
	return c
}

// edit changes a container's config.json.
func (c *container) edit(change func(*rspec.Spec)) {
	c.n.t.Helper()
	path := filepath.Join(c.bundle, "config.json")
	data, err := os.ReadFile(path)
	require.NoError(c.n.t, err)
	spec := &rspec.Spec{}
	require.NoError(c.n.t, json.Unmarshal(data, spec))
	change(spec)
	data, err = json.Marshal(spec)
	require.NoError(c.n.t, err)
	require.NoError(c.n.t, os.WriteFile(path, data, 0o644))
}

// setEnv adds a variable.
func (c *container) setEnv(entry string) {
	c.n.t.Helper()
	c.edit(func(spec *rspec.Spec) { spec.Process.Env = append(spec.Process.Env, entry) })
}

// bind adds a mount.
func (c *container) bind(from, to string) {
	c.n.t.Helper()
	c.edit(func(spec *rspec.Spec) {
		spec.Mounts = append(spec.Mounts, rspec.Mount{Destination: to, Source: from, Type: "bind", Options: []string{"bind", "rw"}})
	})
}

// run runs it to its end.
func (c *container) run() (out string, status int) {
	c.n.t.Helper()
	return run(c.n.t, nil, "runc", "run", "--bundle", c.bundle, c.id)
}

// start makes it and leaves it to itself.
func (c *container) start() {
	c.n.t.Helper()
	c.background("runc", "run", "--detach", "--bundle", c.bundle, c.id)
}

// background runs a runtime. Its container continues with its output.
func (c *container) background(program string, args ...string) {
	c.n.t.Helper()
	log, err := os.Create(filepath.Join(c.bundle, "log"))
	require.NoError(c.n.t, err)
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	err = cmd.Run()
	said, _ := os.ReadFile(log.Name())
	require.NoError(c.n.t, err, "%s", said)
}

// stop kills it and deletes it.
func (c *container) stop() {
	c.n.t.Helper()
	out, status := run(c.n.t, nil, "runc", "delete", "--force", c.id)
	require.Zero(c.n.t, status, out)
}

// claims are the containers that have claims.
func (n *node) claims() []string {
	n.t.Helper()
	entries, err := os.ReadDir(n.path("run/containers"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(n.t, err)
	var ids []string
	for _, e := range entries {
		require.False(n.t, strings.HasPrefix(e.Name(), "."), e.Name())
		ids = append(ids, e.Name())
	}
	return ids
}
