package simdriver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ofReal are the names that a real driver's library exports.
func ofReal(t *testing.T, library string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(), "test/limiter/testdata/exports-"+library+"-555.txt"))
	require.NoError(t, err)
	return strings.Fields(string(text))
}

// A program that binds all functions at load starts on a real driver.
// Source: the exports of driver 555, test/limiter/testdata.
func TestRealDriverExportsEveryFunction(t *testing.T) {
	s := New(t, Plain)
	for _, library := range []string{"libnvidia-ml"} {
		have := exports(t, filepath.Join(s.Dir, "sim", library+".so.1"))
		var missing []string
		for _, name := range ofReal(t, library) {
			if !slices.Contains(have, name) && !strings.HasPrefix(name, "cudbg") { // the debugger's interface
				missing = append(missing, name)
			}
		}
		require.Empty(t, missing, library)
	}
}

// Missed is a row of `simctl missed`.
type Missed struct {
	PID    int    `json:"pid"`
	Symbol string `json:"symbol"`
	Calls  int    `json:"calls"`
}

func TestMissedFunctionsAreCountedPerProcess(t *testing.T) {
	s := New(t, Plain, "H200")
	missed := func() (rows []Missed) {
		require.NoError(t, json.Unmarshal([]byte(s.Ctl("missed", "-o", "json")), &rows))
		return rows
	}
	require.Empty(t, missed())
	var pids []int
	for range 2 {
		cmd := s.Command("sim/check", "missed")
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", text)
		pids = append(pids, cmd.Process.Pid)
	}
	rows := missed()
	require.Len(t, rows, 4)
	for i, pid := range pids {
		require.Equal(t, Missed{pid, "cuTensorMapEncodeTiled", 3}, rows[2*i])
		require.Equal(t, Missed{pid, "nvmlDeviceGetVgpuMetadata", 1}, rows[2*i+1])
	}
	require.Contains(t, s.Ctl("missed"), "cuTensorMapEncodeTiled")
	s.Ctl("missed", "clear")
	require.Empty(t, missed())
}
