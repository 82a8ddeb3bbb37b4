//go:build e2e && soak

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// growth is what one process had, again and again.
type growth struct {
	pid     int
	samples []map[string]float64
}

// spare is what may come and go with what is under way at the moment.
var spare = map[string]float64{"open files": 8, "threads": 8, "resident MiB": 24, "goroutines": 16, "heap MiB": 12}

// programs are the files of what is looked at, in the image.
var programs = map[string]string{"agent": "gpuslice-agent", "scheduler": "gpuslice-scheduler"}

// look takes a sample of the agent and of the scheduler, and looks for violations.
func (s *soaked) look(ctx context.Context) error {
	for name, g := range s.grown {
		pids, err := harness.Processes(func(program, args string) bool {
			return program == programs[name] && !strings.Contains(args, "webhook") // which is the same program
		})
		if err != nil {
			return err
		}
		pids = slices.DeleteFunc(pids, func(pid int) bool { return !inCluster(pid) })
		if len(pids) != 1 {
			return fmt.Errorf("%d processes are the %s", len(pids), name)
		}
		if g.pid != pids[0] { // one that has lost its lease ends, and is started again
			*g = growth{pid: pids[0]}
		}
		sample, err := processSample(g.pid)
		if err == nil && name == "agent" {
			err = agentSample(ctx, sample)
		}
		if err != nil {
			return err
		}
		g.samples = append(g.samples, sample)
	}
	return nil
}

// inCluster reports whether a process is of this cluster and not of another on the machine.
func inCluster(pid int) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(groups), filepath.Base(cluster.Dir))
}

func processSample(pid int) (map[string]float64, error) {
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	sample := map[string]float64{"open files": float64(len(files))}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "Threads:":
			sample["threads"], err = strconv.ParseFloat(fields[1], 64)
		case "VmRSS:":
			sample["resident MiB"], err = strconv.ParseFloat(fields[1], 64)
			sample["resident MiB"] /= 1 << 10
		}
	}
	return sample, err
}

// agentSample adds the agent's metrics.
func agentSample(ctx context.Context, sample map[string]float64) error {
	pods, err := cluster.PodsOf(ctx, "agent")
	if err != nil || len(pods) != 1 {
		return fmt.Errorf("%d pods are the agent: %w", len(pods), err)
	}
	text, err := cluster.API.CoreV1().Pods(kube.Namespace).ProxyGet("http", pods[0].Name, "9394", "/metrics", nil).DoRaw(ctx)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case name == "go_goroutines":
			sample["goroutines"] = number
		case name == "go_memstats_next_gc_bytes":
			sample["heap MiB"] = number / (1 << 20)
		case strings.HasPrefix(name, "gpuslice_violations_total"), name == "gpuslice_orphans":
			if number > 0 {
				return fmt.Errorf("%s is %v", name, number)
			}
		}
	}
	return nil
}

// requireNone compares the last quarter of the samples with the one before; in the first
// half a heap first comes to its size.
func (g *growth) requireNone(t *testing.T, of string) {
	quarter := len(g.samples) / 4
	require.NotZero(t, quarter, "the %s: %d samples of its last process are too few: have more pods (-soak=N)", of, len(g.samples))
	settled := g.samples[len(g.samples)-2*quarter:]
	for name := range settled[0] {
		first, last := medianOf(settled[:quarter], name), medianOf(settled[quarter:], name)
		t.Logf("%s of the %s: %.0f, and in the last quarter %.0f (%d samples)", name, of, first, last, len(g.samples))
		assert.LessOrEqual(t, last, first+spare[name], "%s of the %s", name, of)
	}
}

func medianOf(samples []map[string]float64, name string) float64 {
	var values []float64
	for _, s := range samples {
		values = append(values, s[name])
	}
	slices.Sort(values)
	return values[len(values)/2]
}
