//go:build root

package ociruntime

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// What gpuslice-runtime adds to a container's creation by runc, in one run and taken in
// turns: without a request, with one, and with one beside 16 containers that have shares;
// and what chains of helpers add, see standIn.
func BenchmarkCreate(b *testing.B) {
	m := newMachine(b, "deviceSplitCount: 40\n")
	// Bundles are where docker and containerd have them: below /run, in memory.
	require.NoError(b, harness.MountTmpfs(m.path("bundles"), 16))
	wrapper, runc := m.installed("gpuslice-runtime"), "/usr/sbin/runc"
	m.installed("gpuslice")
	request := []string{"GPUSLICE_MEMORY=1MiB"}
	m.must("create", "-b", m.bundle("first", request), "first") // queries the GPUs, installs the library
	defer m.remove("first")

	// What runc does for the edits, more mounts and devices, is runc's: the wrapper with a
	// request is held against runc by itself with the config that came of one.
	edited := read(b, filepath.Join(m.path("bundles/first"), configName))
	helper := []string{wrapper, "hook", "poststop", "--config=" + m.path("runtime.yaml")}
	ways := []*way{
		{name: "runc", program: runc},
		{name: "no-request", program: wrapper},
		{name: "runc-edited", program: runc, config: edited},
		{name: "share", program: wrapper, env: request},
		{name: "helpers-bare", program: runc, config: standIn(m, wrapper, edited, false), before: helper},
		{name: "helpers", program: runc, config: standIn(m, wrapper, edited, true), before: helper},
	}
	for range b.N {
		for _, w := range ways {
			w.measure(m)
		}
	}
	for i := range 16 {
		id := fmt.Sprintf("c%d", i)
		m.must("create", "-b", m.bundle(id, request), id)
		defer m.remove(id)
	}
	crowd := []*way{{name: "", program: runc, config: edited}, {name: "share-beside-16", program: wrapper, env: request}}
	for range b.N {
		for _, w := range crowd {
			w.measure(m)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(p50(ways[0].took), "runc-p50-ms")
	for _, chain := range ways[4:] {
		b.ReportMetric((p50(ways[3].took)-p50(ways[2].took))/(p50(chain.took)-p50(ways[2].took)), "share-of-"+chain.name)
		b.ReportMetric((p50(ways[3].cpu)-p50(ways[2].cpu))/(p50(chain.cpu)-p50(ways[2].cpu)), "share-of-"+chain.name+"-cpu")
	}
	for _, pair := range [][2]*way{{ways[1], ways[0]}, {ways[3], ways[2]}, {crowd[1], crowd[0]}, {ways[4], ways[2]}, {ways[5], ways[2]}} {
		b.ReportMetric(p50(pair[0].took)-p50(pair[1].took), pair[0].name+"-adds-ms")
		b.ReportMetric(p50(pair[0].cpu)-p50(pair[1].cpu), pair[0].name+"-adds-cpu-ms")
	}
}

// installed is a program as an installation leaves it: copied. The pages of a file that the
// linker has written lie in smaller pieces, and each start of it takes 0.3 ms more.
func (m *machine) installed(name string) string {
	source := m.artefact("bin", name)
	if _, err := os.Lstat(m.path("installed/lib")); err != nil {
		require.NoError(m, os.MkdirAll(m.path("installed/bin"), 0o755))
		require.NoError(m, os.Symlink(filepath.Join(filepath.Dir(filepath.Dir(source)), "lib"), m.path("installed/lib")))
	}
	data, err := os.ReadFile(source)
	require.NoError(m, err)
	return write(m, m.path("installed/bin/"+name), string(data), 0o755)
}

// standIn returns a config with as many helpers as NVIDIA's runtime has in its
// published design (docs.nvidia.com, Container Toolkit, "Architecture Overview"): the runtime
// itself, then by a hook nvidia-container-runtime-hook, nvidia-container-cli, and the
// ldconfig that this one runs in the container.
//
// The Go programs of it are stood in for by one that reads its config and the state. In the
// bare chain the other two are C programs that read a small file. In the one that works they
// do what the real ones begin with: a program queries the (simulated) driver by
// NVML, and ldconfig makes a cache of the root file system. That one mounts nothing, and its
// driver answers at once.
func standIn(m *machine, wrapper, edited string, works bool) string {
	var spec rspec.Spec
	require.NoError(m, json.Unmarshal([]byte(edited), &spec))
	cli := rspec.Hook{Path: "/sbin/ldconfig", Args: []string{"ldconfig", "-p"}}
	ldconfig := cli
	if works {
		cli = rspec.Hook{
			Path: m.path("installed/bin/gpuslice"), Env: []string{"SIMGPU_STATE=" + m.path("sim/state")},
			Args: []string{"gpuslice", "gpus", "--nvml-library=" + m.artefact("sim", "libnvidia-ml.so.1")},
		}
		ldconfig.Args = []string{"ldconfig", "-X", "-r", m.rootfs, "-f", "/dev/null", "-C", "/tmp/ld.so.cache"}
	}
	spec.Hooks.CreateRuntime = append(spec.Hooks.CreateRuntime,
		rspec.Hook{Path: wrapper, Args: []string{"gpuslice-runtime", "hook", "poststop", "--config=" + m.path("runtime.yaml")}}, cli, ldconfig)
	data, err := json.Marshal(spec)
	require.NoError(m, err)
	return string(data)
}

// way is one way to make a container.
type way struct {
	name, program string
	env           []string
	config        string   // in place of one that is made
	before        []string // a helper that runs first
	took, cpu     []time.Duration
}

// measure makes a container and removes it.
func (w *way) measure(m *machine) {
	bundle := m.bundle("web", w.env)
	if w.config != "" {
		write(m, filepath.Join(bundle, configName), w.config, 0o644)
	}
	start := time.Now()
	var helper time.Duration
	if w.before != nil {
		cmd := exec.Command(w.before[0], w.before[1:]...)
		cmd.Stdin = strings.NewReader(`{"id":"web"}`)
		require.NoError(m, cmd.Run())
		helper = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	w.cpu = append(w.cpu, helper+w.call(m, "create", "--bundle", bundle, "web"))
	w.took = append(w.took, time.Since(start))
	w.call(m, "delete", "--force", "web")
}

// call returns the processor's time, which is more reliable than the clock on a
// machine that has other work.
func (w *way) call(m *machine, args ...string) time.Duration {
	cmd := m.command(nil, args...)
	cmd.Path, cmd.Args[0] = w.program, w.program
	cmd.Env = append(cmd.Env, "GPUSLICE_RUNTIME_CONFIG="+m.path("runtime.yaml"))
	require.NoError(m, cmd.Run())
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// p50 is the median in milliseconds.
func p50(all []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return float64(sorted[len(sorted)/2]) / float64(time.Millisecond)
}

// What the edit itself takes in the process: decode, choose, book, apply, write.
func BenchmarkAdmit(b *testing.B) {
	n := newBench(b)
	for range b.N {
		b.StopTimer()
		bundle := n.bundle(b, "docker-29")
		b.StartTimer()
		undo, err := n.create(context.Background(), &creation{call: Call{Command: "create", ID: id, Bundle: bundle}, lowLevel: "/usr/sbin/runc", creator: os.Getpid()})
		require.NoError(b, err)
		b.StopTimer()
		require.NoError(b, undo())
		b.StartTimer()
	}
}
