//go:build root

package simdriver

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// ofReal are the names that a library of the real driver 535 or 555 exports, without the debugger's interface.
func ofReal(t *testing.T, library, driver string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(), "test/limiter/testdata/exports-"+library+".txt"))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		name, since, _ := strings.Cut(strings.TrimSpace(line), " ")
		if since <= driver && !strings.HasPrefix(name, "cudbg") {
			names = append(names, name)
		}
	}
	return names
}

// A program that binds all functions at load starts on a real driver.
// Source: the exports of driver 555, test/limiter/testdata.
func TestRealDriverExportsEveryFunction(t *testing.T) {
	s := New(t, Plain)
	for _, library := range []string{"libcuda", "libnvidia-ml"} {
		have := exports(t, filepath.Join(s.Dir, "sim", library+".so.1"))
		var missing []string
		for _, name := range ofReal(t, library, "555") {
			if !slices.Contains(have, name) {
				missing = append(missing, name)
			}
		}
		require.Empty(t, missing, library)
	}
}

// No two functions are at one address, which is how one answer of cuGetProcAddress is known from another.
// Source: readelf of driver 535's libcuda.so.1.
func TestRealDriverHasAnAddressForEachFunction(t *testing.T) {
	s := New(t, Plain)
	file, err := elf.Open(filepath.Join(s.Dir, "sim/libcuda.so.1"))
	require.NoError(t, err)
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	require.NoError(t, err)
	at := map[uint64]string{}
	for _, symbol := range symbols {
		if symbol.Section != elf.SHN_UNDEF {
			require.Empty(t, at[symbol.Value], symbol.Name)
			at[symbol.Value] = symbol.Name
		}
	}
	require.Greater(t, len(at), 500)
}

// The libraries of an earlier driver have its functions, and none that came later.
// Source: the exports of drivers 535 and 555, test/limiter/testdata; docs.nvidia.com/deploy/nvml-api, its change log of 550.
func TestRealDriver535LacksLaterFunctions(t *testing.T) {
	s := New(t, Plain)
	require.NoError(t, harness.Make("", "drivers", "testdata/simdriver"))
	for library, names := range map[string]struct{ always, later string }{
		"libcuda":      {"cuInit", "cuGreenCtxCreate"},
		"libnvidia-ml": {"nvmlInit_v2", "nvmlDeviceGetProcessesUtilizationInfo"},
	} {
		have := exports(t, filepath.Join(s.Dir, "sim/535", library+".so.1"))
		require.ElementsMatch(t, ofReal(t, library, "535"), have)
		require.Contains(t, have, names.always)
		require.NotContains(t, have, names.later)
		require.Contains(t, exports(t, filepath.Join(s.Dir, "sim", library+".so.1")), names.later)
	}
	for branch, want := range map[string]string{"535": "535.309.01", "550": "550.163.01", "580": "580.105.08"} {
		s.Ctl("init", "--force", "--driver", branch)
		require.Equal(t, want, s.Status().DriverVersion)
	}
	s.Ctl("init", "--force", "--driver", "535")
	require.Equal(t, 12020, s.Status().CUDAVersion)
}

// What programs compute with differs from architecture to architecture.
// Source: docs.nvidia.com/cuda/cuda-c-programming-guide, technical specifications per compute capability; the data sheets.
func TestRealAttributesOfArchitectures(t *testing.T) {
	const ratio, blocks, reserved, clusters, tensorMaps, texture2D, persistingL2 = 87, 106, 111, 120, 127, 22, 108
	for gpu, want := range map[string]map[int]int64{
		"T4":           {ratio: 32, blocks: 16, reserved: 0, clusters: 0, tensorMaps: 0, texture2D: 131072, persistingL2: 0, 39: 1024},
		"A100-40GB":    {ratio: 2, blocks: 32, reserved: 1024, clusters: 0, tensorMaps: 0, texture2D: 131072, persistingL2: 31457280},
		"L40S":         {ratio: 64, blocks: 24, reserved: 1024, clusters: 0, 39: 1536, 75: 8, 76: 9},
		"H100":         {ratio: 2, blocks: 32, reserved: 1024, clusters: 1, tensorMaps: 1, persistingL2: 32768000},
		"B200":         {ratio: 2, blocks: 32, clusters: 1, 75: 10, 16: 148},
		"GB200":        {ratio: 2, clusters: 1, 75: 10, 16: 152},
		"RTX-PRO-6000": {ratio: 64, blocks: 24, clusters: 1, 75: 12, 16: 188},
	} {
		values, code := New(t, Plain, gpu).Run("sim/check", "attributes")
		require.Zero(t, code)
		for attribute, value := range want {
			require.Equal(t, value, values.Int(fmt.Sprintf("attribute.%d", attribute)), "%s: %d", gpu, attribute)
		}
	}
}

// An RTX PRO 6000 has four MIG devices at most, B200 and GB200 seven; an L40S has no MIG.
// Source: docs.nvidia.com/datacenter/tesla/mig-user-guide, supported GPUs and profiles.
func TestRealBlackwellHasMIG(t *testing.T) {
	for gpu, profiles := range map[string][]string{
		"RTX-PRO-6000": {"1g.24gb", "1g.24gb", "1g.24gb", "1g.24gb"},
		"B200":         {"1g.23gb", "1g.23gb", "1g.23gb", "1g.23gb", "1g.23gb", "1g.23gb", "1g.23gb"},
		"GB200":        {"3g.93gb", "4g.93gb"},
	} {
		s := New(t, Plain, gpu+":mig=on")
		s.Ctl(append([]string{"mig", "0", "create"}, profiles...)...)
		require.Len(t, s.Status().GPUs[0].MIG, len(profiles), gpu)
		require.Error(t, s.Command("sim/simctl", "mig", "0", "create", profiles[0]).Run(), "%s is full", gpu)
	}
	require.Error(t, New(t, Plain, "L40S").Command("sim/simctl", "mig", "0", "enable").Run())
}

// Source: docs.nvidia.com/cuda/cuda-driver-api, tensor map object management: compute capability 9.0 or higher.
func TestRealTensorMapsNeedHopper(t *testing.T) {
	for _, gpu := range []string{"A100-40GB", "B200"} {
		_, code := New(t, Plain, gpu).Run("sim/check", "tensor-maps")
		require.Zero(t, code, gpu)
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
		require.Equal(t, Missed{pid, "cuCoredumpGetAttribute", 3}, rows[2*i])
		require.Equal(t, Missed{pid, "nvmlDeviceGetVgpuMetadata", 1}, rows[2*i+1])
	}
	require.Contains(t, s.Ctl("missed"), "cuCoredumpGetAttribute")
	s.Ctl("missed", "clear")
	require.Empty(t, missed())
}
