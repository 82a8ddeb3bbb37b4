//go:build root

package limiter_test

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a call costs does not depend on what makers have left: a process reads each of these records once, and again when some of
// them change.
func TestLeftIPCRecordsAreReadOnce(t *testing.T) {
	program := filepath.Join(t.TempDir(), "unread")
	require.NoError(t, compile(program, "testdata/unread.c"))
	c := oneGPU(t, giB)
	c.sim = fakeDriver(t)
	ipcRecords(t, c, 100, ipcRecordCount-100)
	lines, stderr := c.run(t, program, c.usage())
	require.Empty(t, stderr)
	require.Equal(t, []string{strconv.Itoa(giB - (ipcRecordCount-100)*512)}, lines)
}

// A process that reads a record while its maker leaves it does not keep that sum: the record counts before its word changes again.
func TestRecordThatIsBeingLeft(t *testing.T) {
	const leaving, left, bytes = 3, 4, 10 * miB / 512 << 17
	c := oneGPU(t, ipcLimit)
	program, file := c.peer(t), c.ipcFile(t)
	file.setHigh(1)
	file.write(ipcStates, leaving|bytes)
	file.write(ipcLeft, 1<<32|1)
	require.Equal(t, 100, program.free())
	require.Equal(t, 100, program.free())
	file.write(ipcStates, left|bytes)
	require.Equal(t, 90, program.free())
	require.Equal(t, 90, program.free())
	file.write(ipcStates, 0)
	file.write(ipcLeft, 1<<32)
	require.Equal(t, 100, program.free())
}
