//go:build root

package soak

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sample is what the agent has at one moment.
type sample struct {
	files, goroutines, heapBytes, residentBytes float64
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
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
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.Agent.PID()))
	if err != nil {
		return err
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
		files: float64(len(files)), goroutines: metrics["go_goroutines"],
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
		{"open files", func(x sample) float64 { return x.files }, 4},
		{"goroutines", func(x sample) float64 { return x.goroutines }, 8},
		{"heap", func(x sample) float64 { return x.heapBytes }, 6 << 20},
		{"resident memory", func(x sample) float64 { return x.residentBytes }, 24 << 20},
	} {
		typical := median
		if of.name == "open files" { // the least: more are open for moments, and what leaks stays open
			typical = least
		}
		first, last := typical(settled[:quarter], of.value), typical(settled[quarter:], of.value)
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

func least(samples []sample, value func(sample) float64) float64 {
	lowest := value(samples[0])
	for _, x := range samples[1:] {
		lowest = min(lowest, value(x))
	}
	return lowest
}

func median(samples []sample, value func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i, x := range samples {
		values[i] = value(x)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
