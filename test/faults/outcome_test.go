//go:build faults

package faults

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/test/harness"
)

// outcome is what became of one container.
type outcome string

const (
	// limited: it has its GPU and its limits, by its spec and by its own word.
	limited outcome = "limited"
	// voided: it has no GPU, and asks for none: it never did, or that was taken back.
	voided outcome = "no GPU"
	// bare: it has no GPU, and its own request remains in its spec: only the rule that only the plugin grants
	// prevented a GPU.
	bare outcome = "no GPU, its request stands"
)

// The refusals, by component and reason. Any other error of a creation fails the test.
const (
	byDeadline  outcome = "refused: inner deadline"
	byLedger    outcome = "refused: ledger"
	byReconcile outcome = "refused: not reconciled"
	byLost      outcome = "refused: validator, request lost"
	bySecond    outcome = "refused: second plugin"
	byRequired  outcome = "refused: required plugin missing"
)

var refusals = []struct {
	text string
	outcome
}{
	{"refuses all grants until the ledger is reconciled", byReconcile}, // and then why
	{"did not decide within the runtime's NRI timeout", byDeadline},
	{"another process holds it: context deadline exceeded", byDeadline},
	{"wait for the ledger: context deadline exceeded", byDeadline},
	{"read-only file system", byLedger},
	{"plugin 90-gpuslice failed to handle CreateContainer request", byLost}, // NRI 0.12.5
	{"validator plugin 90-gpuslice failed: ttrpc: closed", byLost},
	{"validator plugin 90-gpuslice failed: context deadline exceeded", byLost},
	{"annotation gpuslice.io/shares, which only gpuslice writes", bySecond}, // the annotation of the first plugin
	{`required plugin "gpuslice" not present`, byRequired},
}

// refusal is the layer that an error of CreateContainer comes from.
func refusal(err error) (outcome, error) {
	for _, r := range refusals {
		if strings.Contains(err.Error(), r.text) {
			return r.outcome, nil
		}
	}
	return "", fmt.Errorf("not created for another reason: %w", err)
}

// created is the outcome of a container that ran meminfo to its end.
func created(spec *rspec.Spec, stateDir, uuid string, exitCode int, log string) (outcome, error) {
	hasGPU, err := harness.LimitedOrNone(spec, stateDir)
	if err != nil {
		return "", err
	}
	seen := harness.KeyValues(log)
	limit := strconv.Itoa(limitMiB << 20)
	switch {
	case hasGPU && exitCode == 0 && seen["device_count"] == "1" && seen["device.0.uuid"] == uuid &&
		seen["device.0.total_bytes"] == limit && seen["nvml.0.total_bytes"] == limit:
		return limited, nil
	case !hasGPU && exitCode == noDriver:
		if asks(spec) {
			return bare, nil
		}
		return voided, nil
	}
	return "", fmt.Errorf("a GPU in its spec: %v, exit status %d: %s", hasGPU, exitCode, strings.TrimSpace(log))
}

// noDriver is the workloads' exit status where there is no libcuda.
const noDriver = 4

// asks reports whether a spec requests GPUs from NVIDIA's runtime.
func asks(spec *rspec.Spec) bool {
	for _, e := range spec.Process.Env {
		if value, ok := strings.CutPrefix(e, "NVIDIA_VISIBLE_DEVICES="); ok && value != "void" {
			return true
		}
	}
	return false
}

// expected are the outcomes that a cell may have, and the least number of each.
type expected map[outcome]int

// tally counts a cell's outcomes.
type tally struct {
	mu     sync.Mutex
	counts map[outcome]int
}

func (c *tally) add(o outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[outcome]int{}
	}
	c.counts[o]++
}

// check compares with what is expected.
func (c *tally) check(want expected) error {
	total := 0
	for o, n := range c.counts {
		if _, ok := want[o]; !ok {
			return fmt.Errorf("%d containers are %q, which must not be in this cell (%s)", n, o, c)
		}
		total += n
	}
	for o, least := range want {
		if c.counts[o] < least {
			return fmt.Errorf("%d containers are %q, and at least %d must be (%s)", c.counts[o], o, least, c)
		}
	}
	if total < perCell {
		return fmt.Errorf("%d containers, not %d", total, perCell)
	}
	return nil
}

func (c *tally) String() string {
	var parts []string
	for _, o := range slices.Sorted(maps.Keys(c.counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", c.counts[o], o))
	}
	return strings.Join(parts, "; ")
}
