package ociruntime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What gpuslice-runtime adds to a container's creation by runc, in one run and taken in
// turns: without a request, with one, and with one beside 16 containers that have shares.
func BenchmarkCreate(b *testing.B) {
	m := newMachine(b, "deviceSplitCount: 40\n")
	wrapper, runc := m.artefact("bin", "gpuslice-runtime"), "/usr/sbin/runc"
	request := []string{"GPUSLICE_MEMORY=1MiB"}
	m.must("create", "-b", m.bundle("first", request), "first") // asks for the cards, installs the library
	defer m.remove("first")

	// What runc does for the edits, more mounts and devices, is runc's: the wrapper with a
	// request is held against runc by itself with the config that came of one.
	edited := read(b, filepath.Join(m.path("bundles/first"), configName))
	ways := []*way{
		{name: "runc", program: runc},
		{name: "no-request", program: wrapper},
		{name: "runc-edited", program: runc, config: edited},
		{name: "share", program: wrapper, env: request},
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
	for _, pair := range [][2]*way{{ways[1], ways[0]}, {ways[3], ways[2]}, {crowd[1], crowd[0]}} {
		b.ReportMetric(p50(pair[0].took)-p50(pair[1].took), pair[0].name+"-adds-ms")
		b.ReportMetric(p50(pair[0].cpu)-p50(pair[1].cpu), pair[0].name+"-adds-cpu-ms")
	}
}

// way is one way to make a container.
type way struct {
	name, program string
	env           []string
	config        string // in place of one that is made
	took, cpu     []time.Duration
}

// measure makes a container and removes it.
func (w *way) measure(m *machine) {
	bundle := m.bundle("web", w.env)
	if w.config != "" {
		write(m, filepath.Join(bundle, configName), w.config, 0o644)
	}
	start := time.Now()
	w.cpu = append(w.cpu, w.call(m, "create", "--bundle", bundle, "web"))
	w.took = append(w.took, time.Since(start))
	w.call(m, "delete", "--force", "web")
}

// call returns the processor's time that it took, which says more than the clock on a
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
		undo, err := n.create(context.Background(), &order{call: Call{Command: "create", ID: id, Bundle: bundle}, lowLevel: "/usr/sbin/runc", creator: os.Getpid()})
		require.NoError(b, err)
		b.StopTimer()
		require.NoError(b, undo())
		b.StartTimer()
	}
}
