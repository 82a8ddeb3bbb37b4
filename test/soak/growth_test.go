//go:build root

package soak

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// sample is the agent's memory at one moment.
type sample struct {
	heapBytes, residentBytes float64
}

// handles are what the agent has open for each container, and must close.
type handles struct {
	files, goroutines int
}

// look takes a sample, and looks for what must never be: reservations that exceed the GPU, a leaked claim, a
// violation.
func (s *soak) look(ctx context.Context, _ *rand.Rand) error {
	status, err := s.Status(ctx)
	if err != nil {
		return err
	}
	if gpu := status.GPUs[0]; gpu.GrantedMemoryMiB > s.capacityMiB {
		return fmt.Errorf("overbooked: %+v", gpu)
	}
	metrics, err := scrape(ctx, s.metrics)
	if err != nil {
		return err
	}
	for name, value := range metrics {
		if strings.HasPrefix(name, "gpuslice_violations_total") && value > 0 {
			return fmt.Errorf("%s is %v", name, value)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples = append(s.samples, sample{
		// The heap's size at which the next collection begins follows from what was live at the last one.
		heapBytes: metrics["go_memstats_next_gc_bytes"],
		// What C allocates, as NVML does, is in no heap of Go's.
		residentBytes: metrics["process_resident_memory_bytes"],
	})
	return nil
}

// scrape reads the agent's metrics.
func scrape(ctx context.Context, address string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	found := map[string]float64{}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if at := strings.LastIndexByte(lines.Text(), ' '); at > 0 && !strings.HasPrefix(lines.Text(), "#") {
			if value, err := strconv.ParseFloat(lines.Text()[at+1:], 64); err == nil {
				found[lines.Text()[:at]] = value
			}
		}
	}
	return found, lines.Err()
}

// handlesAtRest removes all containers, and returns the agent's handles once they are at most those of before, if it is set.
func (s *soak) handlesAtRest(ctx context.Context, before *handles) (now handles) {
	s.removeAll(ctx)
	// The agent reconciles its ledger when it connects: that removes the claims of runtimes that were killed.
	s.Containerd.Kill()
	require.NoError(s.t, s.Containerd.Start(ctx))
	s.requireEmpty(ctx)
	err := harness.Until(ctx, patience, func(ctx context.Context) error {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.Agent.PID()))
		if err != nil {
			return err
		}
		metrics, err := scrape(ctx, s.metrics)
		if err != nil {
			return err
		}
		now = handles{len(files), int(metrics["go_goroutines"])}
		// Connections of the test come and go.
		if before != nil && (now.files > before.files+4 || now.goroutines > before.goroutines+8) {
			return fmt.Errorf("the agent has %+v, and had %+v when as little ran", now, *before)
		}
		return nil
	})
	require.NoError(s.t, err)
	s.t.Logf("the agent without containers: %+v", now)
	return now
}

// requireNoGrowth compares the last quarter of the samples with the one before: what leaks
// grows with the containers, and they were thousands or, in the short form, hundreds. The
// first half is not looked at, for in it a heap first comes to its size.
func (s *soak) requireNoGrowth() {
	quarter := len(s.samples) / 4
	require.NotZero(s.t, quarter, "too few samples")
	settled := s.samples[len(s.samples)-2*quarter:]
	for _, of := range []struct {
		name  string
		value func(sample) float64
		// spare is what may come and go with what is under way at the moment.
		spare float64
	}{
		{"heap", func(x sample) float64 { return x.heapBytes }, 6 << 20},
		{"resident memory", func(x sample) float64 { return x.residentBytes }, 24 << 20},
	} {
		first, last := median(settled[:quarter], of.value), median(settled[quarter:], of.value)
		s.t.Logf("%s of the agent: %.0f, and in the last quarter %.0f (%d samples)", of.name, first, last, len(s.samples))
		var course []string // for people, by tenths: what leaks climbs to the end
		for tenth := range slices.Chunk(s.samples, (len(s.samples)+9)/10) {
			course = append(course, fmt.Sprintf("%.0f", median(tenth, of.value)))
		}
		s.t.Logf("its course: %s", strings.Join(course, " "))
		require.NotZero(s.t, first, of.name)
		assert.LessOrEqual(s.t, last, first+of.spare, of.name)
	}
}

func median(samples []sample, value func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i, x := range samples {
		values[i] = value(x)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
