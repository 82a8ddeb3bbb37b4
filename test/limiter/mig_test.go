//go:build root

package limiter_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

// newMIGMachine is a machine with MIG devices of these profiles on its first GPU, and their UUIDs in NVML, in
// the order of their instances.
func newMIGMachine(t *testing.T, profiles ...string) (state string, uuids []string) {
	t.Helper()
	state = newMachine(t, "H200", "T4")
	simctl := func(args ...string) []byte {
		out, err := exec.Command(filepath.Join(built, "sim", "simctl"), append([]string{"--state", state}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return out
	}
	simctl("mig", "0", "enable")
	simctl(append([]string{"mig", "0", "create"}, profiles...)...)
	var status struct {
		GPUs []struct {
			MIG []struct{ UUID string }
		}
	}
	require.NoError(t, json.Unmarshal(simctl("status", "-o", "json"), &status))
	for _, d := range status.GPUs[0].MIG {
		uuids = append(uuids, d.UUID)
	}
	require.Len(t, uuids, len(profiles))
	return state, uuids
}

// The driver has the GPU's UUID and the MIG device's: the record is found by the
// second, the limit is held to, and every view is of the slice.
func TestMIGDevice(t *testing.T) {
	state, uuids := newMIGMachine(t, "1g.18gb", "1g.18gb")
	for i, uuid := range uuids {
		t.Run(fmt.Sprint("device ", i), func(t *testing.T) {
			c := newContainer(t, state, gpu{uuid, giB}).with("CUDA_VISIBLE_DEVICES=" + uuid)
			lines, stderr := c.probe(t, fmt.Sprintf("init uuid 0 total 0 ctx 0 alloc 1073741824 alloc 1 info nvmlmig 0 %d free 0", i))
			assert.Empty(t, stderr)
			assert.Equal(t, []string{
				"init 0", "uuid 0 " + strings.ReplaceAll(strings.TrimPrefix(uuid, "MIG-"), "-", ""), "total 0 1073741824",
				"ctx 0", "alloc 0", "alloc 2", "info 0 free 0 total 1073741824",
				"nvml 0 total 1073741824 free 0 used 1073741824", "nvml2 0 total 1073741824 free 0 used 1073741824", "free 0",
			}, lines)
			limits, err := limiter.ReadLimits(c.limits())
			require.NoError(t, err)
			assert.Equal(t, uuid, limits.Devices[0].UUID, "the record is of a MIG device")
			usage, err := limiter.ReadUsage(c.usage())
			require.NoError(t, err)
			assert.Equal(t, uuid, usage.Devices[0].UUID, "and so does the usage file")
		})
	}
}

// The limit of a whole MIG device is its own memory: the driver's numbers, and the
// driver's refusal.
func TestWholeMIGDevice(t *testing.T) {
	state, uuids := newMIGMachine(t, "1g.18gb")
	c := newContainer(t, state, gpu{uuids[0], 16384 * miB}).with("CUDA_VISIBLE_DEVICES=" + uuids[0])
	script := "init total 0 ctx 0 info nvmlmig 0 0 alloc 0x400000000"
	lines, stderr := c.probe(t, script)
	bare, _ := c.bare().probe(t, script)
	assert.Empty(t, stderr)
	assert.Equal(t, "alloc 2", lines[len(lines)-1])
	assert.Equal(t, bare[:4], lines[:4], "as without the library")
}

// The MIG device of another container, and a GPU, are denied. NVML reports nothing of the GPU of the
// container's own MIG device, and a call for it gives no error line.
func TestUnlistedMIGDevice(t *testing.T) {
	state, uuids := newMIGMachine(t, "1g.18gb", "1g.18gb")
	c := newContainer(t, state, gpu{uuids[0], giB})
	lines, stderr := c.with("CUDA_VISIBLE_DEVICES="+uuids[1]).probe(t, "init total 0 ctx 0 nvmlmig 0 1")
	assert.Equal(t, []string{"init 0", "total 3 ", "ctx 3"}, trimmed(lines[:3]))
	assert.True(t, strings.HasPrefix(lines[3], "nvml 4 "), lines[3])
	assert.Contains(t, stderr, "no record of it")

	lines, stderr = c.with("CUDA_VISIBLE_DEVICES="+gpuIDs[1]).probe(t, "init total 0 ctx 0")
	assert.Equal(t, []string{"init 0", "total 3 ", "ctx 3"}, trimmed(lines))
	assert.Contains(t, stderr, gpuIDs[1])

	lines, stderr = c.probe(t, "nvml 0 nvmlmig 0 0")
	assert.True(t, strings.HasPrefix(lines[0], "nvml 4 "), lines[0])
	assert.Contains(t, lines[2], "nvml 0 total 1073741824")
	assert.Empty(t, stderr)
}

// trimmed leaves the numbers out that a refused call doesn't give.
func trimmed(lines []string) []string {
	var out []string
	for _, line := range lines {
		if rest, ok := strings.CutPrefix(line, "total 3 "); ok {
			line = "total 3 " + strings.TrimLeft(rest, "0123456789")
		}
		out = append(out, line)
	}
	return out
}

// A container with nothing but a GPU's record can't use the GPU's MIG devices, which
// a driver that only knows cuDeviceGetUuid would call by that name.
func TestMIGDeviceIsNotItsGPU(t *testing.T) {
	state, uuids := newMIGMachine(t, "1g.18gb")
	c := newContainer(t, state, gpu{gpuIDs[0], giB}).with("CUDA_VISIBLE_DEVICES=" + uuids[0])
	lines, stderr := c.probe(t, "init ctx 0 alloc 1")
	assert.Equal(t, []string{"init 0", "ctx 3"}, lines[:2])
	assert.NotContains(t, lines[2], "alloc 0")
	assert.Contains(t, stderr, "no record of it")
}
