//go:build root

package limiter_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// However a CUDA program makes another process: what it has stays its own until it is
// gone, and a new program gets what is left, no more.
func TestFamilies(t *testing.T) {
	require.NoError(t, compile(filepath.Join(bin, "family"), "testdata/family.c", "-pthread"))
	const other = "other: 500 2, 400 0, left 0 24"
	after := []string{"parent 0", other, "ended 0", "left 0 424"}
	for _, test := range []struct {
		way  string
		want []string
	}{
		{"vfork", after},
		{"vfork-exit", []string{"parent 0", "ended 300", "left 0 424"}},
		{"spawn", after},
		{"system", []string{"parent 0", "system 4", "left 0 424"}},
		{"clone-vm", after},
		{"clone-files", after},
		{"fork", []string{"parent 0", "child 1", "ended 500", "left 0 424"}},
		{"clone", []string{"parent 0", "child 1", "ended 500", "left 0 424"}},
		{"fork-exec", after},
		{"new-namespace", after},
		{"exec", []string{"parent 0", "other: 500 0, 400 0, left 0 124"}},
		{"exec-thread", []string{"parent 0", "other: 500 0, 400 0, left 0 124"}},
		{"closefrom", []string{"parent 0", other, "ended 0"}},
	} {
		t.Run(test.way, func(t *testing.T) {
			t.Parallel()
			c := newContainerKnowing(t, newMachine(t, "H200:context_mib=0"), 0, gpu{gpuIDs[0], giB})
			lines, stderr := c.run(t, filepath.Join(bin, "family"), test.way)
			assert.Equal(t, test.want, lines)
			assert.Empty(t, stderr)
			assert.Zero(t, c.used(t), "all are gone")
		})
	}
}

// A process called exec before its start time was in its slot. A thread writes it a moment after the process
// has joined. Without it the slot has only the owner's PID.
func TestExecBeforeTheStartTimeIsKnown(t *testing.T) {
	c := oneGPU(t, giB)
	other := exec.Command("sleep", "600")
	require.NoError(t, other.Start())
	defer func() { other.Process.Kill(); other.Wait() }()
	var namespace uint64
	link, err := os.Readlink("/proc/self/ns/pid")
	require.NoError(t, err)
	_, err = fmt.Sscanf(link, "pid:[%d]", &namespace)
	require.NoError(t, err)

	slot := make([]byte, 128+8)
	binary.LittleEndian.PutUint32(slot, 0x40000000) // FUTEX_OWNER_DIED
	binary.LittleEndian.PutUint32(slot[4:], uint32(other.Process.Pid))
	binary.LittleEndian.PutUint64(slot[16:], namespace)
	binary.LittleEndian.PutUint64(slot[128:], giB)
	f, err := os.OpenFile(c.usage(), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt(slot, 4096)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{1}, 1024) // high water
	require.NoError(t, err)
	lines, stderr := c.probe(t, "init ctx 0 alloc 1073741824")
	assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0"}, lines)
	assert.Empty(t, stderr)
}
