//go:build root

package simdriver

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const a100Context = 420 * mib

// ctlFails runs simctl, which must refuse, and returns its output.
func ctlFails(t *testing.T, s *Sim, args ...string) string {
	t.Helper()
	cmd := s.Command("sim/simctl", args...)
	text, err := cmd.CombinedOutput()
	require.Error(t, err, "simctl %s", strings.Join(args, " "))
	return string(text)
}

// The checks of testdata/simdriver/check/mig.c, under the sanitizers as the others are.
func TestMIGChecks(t *testing.T) {
	for name, variant := range map[string]Variant{"plain": Plain, "sanitized": Sanitized, "threads": Threads} {
		t.Run(name, func(t *testing.T) {
			s := New(t, variant, "A100-40GB:mig=3g.20gb,mig=1g.5gb")
			text, err := s.Command("sim/check", "mig").CombinedOutput()
			require.NoError(t, err, "%s", text)
			// The first by instance id is the one that CUDA takes.
			s.Ctl("mig", "0", "destroy", "1")
			gpu := s.Status().GPUs[0]
			require.Len(t, gpu.MIG, 1)
			require.Zero(t, gpu.MemoryUsedBytes+gpu.MIG[0].MemoryUsedBytes)
			require.EqualValues(t, gpu.MIG[0].MemoryTotalBytes, gpu.MIG[0].MemoryPeakBytes)
			require.EqualValues(t, 10, gpu.MIG[0].Launches)
			require.Zero(t, gpu.Launches, "the instance's, not the GPU's")
			s.Ctl("mig", "0", "list")
			s.Ctl("mig", "0", "profiles")
			s.Ctl("mig", "0", "disable")
		})
	}
}

func TestMIGPlacement(t *testing.T) {
	for _, test := range []struct {
		description string
		create      []string
		starts      []int // in order of instance id
		refused     string
	}{
		{"seven small ones", []string{"1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb"},
			[]int{0, 1, 2, 3, 4, 5, 6}, ""},
		{"an eighth", []string{"1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb"}, nil,
			"a GPU has 7 of it at most"},
		{"small to large, so that the large still fits", []string{"1g.5gb", "2g.10gb", "4g.20gb"}, []int{0, 4, 6}, ""},
		{"two halves", []string{"3g.20gb", "3g.20gb"}, []int{0, 4}, ""},
		{"beside 3g in the upper half", []string{"3g.20gb", "4g.20gb"}, []int{0, 4}, ""},
		{"4g only in the lower half", []string{"3g.20gb:0", "4g.20gb"}, nil, "no room left at a place where it may begin"},
		{"all of it", []string{"7g.40gb"}, []int{0}, ""},
		{"nothing beside all of it", []string{"7g.40gb", "1g.5gb"}, nil, "1g.5gb: no room left"},
		{"double memory has four places", []string{"1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"}, []int{0, 2, 4, 6}, ""},
		{"2g has three", []string{"2g.10gb", "2g.10gb", "2g.10gb", "2g.10gb"}, nil, "3 of it at most"},
		{"one with media extensions", []string{"1g.5gb+me", "1g.5gb+me"}, nil, "1 of it at most"},
		{"at a place", []string{"1g.5gb:3"}, []int{3}, ""},
		{"at a place where none may begin", []string{"2g.10gb:6"}, nil, "no room left at a place"},
		{"at a place that is taken", []string{"2g.10gb:2", "1g.5gb:3"}, nil, "1g.5gb: no room left"},
		{"at no place", []string{"1g.5gb:8"}, nil, "START from 0 to 7: 1g.5gb:8"},
		{"at no number", []string{"1g.5gb:x"}, nil, "want PROFILE or PROFILE:START"},
		{"of another GPU", []string{"1g.18gb"}, nil, "unknown MIG profile: 1g.18gb"},
		{"of none", []string{strings.Repeat("x", 100)}, nil, "want PROFILE"},
	} {
		t.Run(test.description, func(t *testing.T) {
			s := New(t, Plain, "A100-40GB:mig=on")
			command := append([]string{"mig", "0", "create"}, test.create...)
			if test.refused != "" {
				require.Contains(t, ctlFails(t, s, command...), test.refused)
				require.Empty(t, s.Status().GPUs[0].MIG, "all or none")
				return
			}
			s.Ctl(command...)
			var starts []int
			for i, device := range s.Status().GPUs[0].MIG {
				require.Equal(t, i, device.Index)
				starts = append(starts, device.Start)
			}
			require.ElementsMatch(t, test.starts, starts)
		})
	}
}

// Ids, UUIDs and capability minors are those of the place, as on a real GPU: gone and back, they are the same.
func TestMIGIdentity(t *testing.T) {
	s := New(t, Plain, "T4", "H100:minor=2,mig=1g.10gb:6,mig=2g.20gb:4,mig=4g.40gb:0")
	gpu := s.Status().GPUs[1]
	require.True(t, gpu.MIGEnabled)
	require.False(t, s.Status().GPUs[0].MIGEnabled)
	var ids []int
	var profiles []string
	for _, device := range gpu.MIG {
		ids = append(ids, device.GPUInstance)
		profiles = append(profiles, device.Profile)
		gpu := 3 + 2*135 + 9*device.GPUInstance
		require.Equal(t, []int{gpu, gpu + 1}, device.CapMinors)
	}
	require.Equal(t, []int{1, 5, 13}, ids)
	require.Equal(t, []string{"4g.40gb", "2g.20gb", "1g.10gb"}, profiles)
	require.Equal(t, "MIG-00000002-5151-5000-8000-020100000002", gpu.MIG[0].UUID)

	s.Ctl("mig", "1", "destroy", gpu.MIG[1].UUID)
	require.Len(t, s.Status().GPUs[1].MIG, 2)
	s.Ctl("mig", "1", "create", "2g.20gb")
	require.Equal(t, gpu, s.Status().GPUs[1])
	require.Contains(t, ctlFails(t, s, "mig", "1", "destroy", first), "no such MIG device: "+first)
	s.Ctl("mig", second, "destroy", "all")
	require.Empty(t, s.Status().GPUs[1].MIG)
	require.True(t, s.Status().GPUs[1].MIGEnabled)
}

func TestMIGModeIsRefusedWhileTheGPUIsUsed(t *testing.T) {
	s := New(t, Plain, "A100-80GB", "T4")
	require.Contains(t, ctlFails(t, s, "mig", "0", "create", "1g.10gb"), "MIG is off; simctl mig 0 enable")
	require.Contains(t, ctlFails(t, s, "mig", "1", "enable"), "GPU 1: T4 has no MIG")
	require.Contains(t, ctlFails(t, s, "mig", "1", "profiles"), "GPU 1: T4 has no MIG")
	whole := s.Start("workloads/hold", "--mib=1")
	inUse := "GPU 0 is in use by process "
	require.Contains(t, ctlFails(t, s, "mig", "0", "enable"), inUse+strconv.Itoa(whole.Process.Pid))
	whole.Kill()
	s.Ctl("mig", "0", "enable")
	s.Ctl("mig", "0", "enable") // it is
	s.Ctl("mig", "0", "create", "1g.10gb", "1g.10gb")

	devices := s.Status().GPUs[0].MIG
	s.Env = []string{"CUDA_VISIBLE_DEVICES=" + devices[1].UUID}
	s.Start("workloads/hold", "--mib=1")
	require.Contains(t, ctlFails(t, s, "mig", "0", "disable"), inUse)
	require.Contains(t, ctlFails(t, s, "mig", "0", "destroy", "all"), inUse)
	require.Contains(t, ctlFails(t, s, "mig", "0", "destroy", "1"), inUse)
	s.Ctl("mig", "0", "destroy", "0") // the other one is free
	require.Equal(t, devices[1].UUID, s.Status().GPUs[0].MIG[0].UUID)
	s.Ctl("mig", "0", "create", "3g.40gb")
}

func TestMIGModeTakesTheGPUFromWhoSawAllOfIt(t *testing.T) {
	s := New(t, Plain, "H100")
	cmd := s.Command("sim/check", "mig-late")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	late := s.StartCommand(cmd)
	s.Ctl("mig", "0", "enable") // it has no context
	_, err = stdin.Write([]byte("go\n"))
	require.NoError(t, err)
	require.NoError(t, late.Wait())
}

func TestMIGMemoryIsCarvedFromTheGPU(t *testing.T) {
	s := New(t, Plain, "A100-40GB:memory_mib=20480,mig=3g.20gb")
	require.Contains(t, ctlFails(t, s, "mig", "0", "create", "1g.5gb:0"), "1g.5gb: the GPU has less than its 4864 MiB left")
	require.Len(t, s.Status().GPUs[0].MIG, 1)
	whole := ctlFails(t, s, "init", "--force", "--gpu", "A100-40GB:mig=7g.40gb,memory_mib=1000")
	require.Contains(t, whole, "its MIG devices have more memory than it has")
	s.Ctl("init", "--force", "--gpu", "A100-40GB:memory_mib=1424,mig=7g.40gb")
	require.EqualValues(t, 1000*mib, s.Status().GPUs[0].MIG[0].MemoryTotalBytes, "of a small GPU, all it has")
}

func TestMIGDeviceIsExhaustedByItself(t *testing.T) {
	s := New(t, Plain, "A100-40GB:mig=1g.5gb,mig=1g.5gb,event_ns=0")
	one, two := s.Status().GPUs[0].MIG[0], s.Status().GPUs[0].MIG[1]
	on := func(device MIG) { s.Env = []string{"CUDA_VISIBLE_DEVICES=" + device.UUID} }
	on(one)
	holder := s.Start("workloads/hold", "--mib=3000")
	values, _ := s.Run("workloads/alloc", "--chunk-mib=1")
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", values["result"])
	require.EqualValues(t, 4864*mib-3000*mib-2*a100Context, values.Int("allocated_bytes"))
	on(two)
	values, _ = s.Run("workloads/alloc", "--chunk-mib=1")
	require.EqualValues(t, 4864*mib-a100Context, values.Int("allocated_bytes"), "the neighbour has all of its own")
	_, code := s.Run("workloads/launch", "--count=5", "--duration-us=1000", "--in-flight=5")
	require.Zero(t, code)

	gpu := s.Status().GPUs[0]
	require.EqualValues(t, 3000*mib+a100Context, gpu.MemoryUsedBytes, "the sum")
	require.EqualValues(t, 3000*mib, gpu.MIG[0].MemoryDataBytes)
	require.EqualValues(t, a100Context, gpu.MIG[0].MemoryContextBytes)
	require.EqualValues(t, 4864*mib, gpu.MIG[0].MemoryPeakBytes)
	require.Zero(t, gpu.MIG[1].MemoryUsedBytes)
	require.EqualValues(t, 5, gpu.MIG[1].Launches)
	require.EqualValues(t, 5e6, gpu.MIG[1].BusyNanoseconds)
	require.Zero(t, gpu.MIG[0].Launches)
	holder.Kill()
	require.Zero(t, s.Status().GPUs[0].MIG[0].MemoryUsedBytes)
	s.Ctl("reset-peak")
	require.Zero(t, s.Status().GPUs[0].MIG[0].MemoryPeakBytes)
}

// Killed at every instruction that matters, a process leaves the instance's sums right.
func TestMIGAccountsSurviveDeath(t *testing.T) {
	s := New(t, Plain, "A100-40GB:mig=1g.5gb")
	neighbour := s.Start("workloads/hold", "--mib=500")
	for point := 1; ; point++ {
		require.Less(t, point, 500)
		s.Env = []string{"SIMGPU_CRASH=" + strconv.Itoa(point)}
		_, code := s.Run("workloads/alloc", "--chunk-mib=1000")
		s.Env = nil
		gpu := s.Status().GPUs[0]
		require.EqualValues(t, 500*mib+a100Context, gpu.MemoryUsedBytes, "crash point %d", point)
		require.EqualValues(t, gpu.MemoryUsedBytes, gpu.MIG[0].MemoryUsedBytes, "crash point %d", point)
		if code == 0 {
			require.Greater(t, point, 30)
			break
		}
	}
	neighbour.Kill()
	require.Zero(t, s.Status().GPUs[0].MIG[0].MemoryUsedBytes)
}
