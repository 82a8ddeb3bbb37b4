//go:build root

package limiter_test

import (
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// NVML lists the container's own processes, also where the driver shows those of others:
// two containers of one PID namespace.
func TestProcessListsAreTheContainersOwn(t *testing.T) {
	machine := newMachine(t, "H200")
	mine := newContainer(t, machine, gpu{gpuIDs[0], 1 << 30})
	other := newContainer(t, machine, gpu{gpuIDs[0], 1 << 30})
	first, neighbour := hold(t, mine, "init ctx 0 alloc 1048576 sleep 60000"), hold(t, other, "init ctx 0 alloc 1048576 sleep 60000")
	for _, cmd := range []*exec.Cmd{first, neighbour} {
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	eventually(t, waitLong, "both hold memory", func() bool { return mine.used(t) == 1<<20 && other.used(t) == 1<<20 })

	script := "init ctx 0 processes"
	lines, _ := mine.bare().probe(t, script)
	all := lines[len(lines)-1]
	require.Contains(t, all, " "+strconv.Itoa(neighbour.Process.Pid)+" ", "the driver shows everybody: %s", all)

	for range 2 {
		lines, _ = mine.probe(t, script)
		own := lines[len(lines)-1]
		assert.Contains(t, own, " "+strconv.Itoa(first.Process.Pid)+" ")
		assert.NotContains(t, own, " "+strconv.Itoa(neighbour.Process.Pid)+" ")
		assert.Contains(t, own, "processes 0 2:", "itself too")
	}
}
