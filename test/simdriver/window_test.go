//go:build root

package simdriver

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"
)

// Sampling periods are the setting's, rounded to 1/24 s; a sample that was seen does not come again.
func TestNVMLSamplingPeriods(t *testing.T) {
	for _, test := range []struct {
		setting string
		period  time.Duration
	}{
		{"", time.Second / 6}, // the default
		{",sample_ms=1000", time.Second},
		{",sample_ms=300", 7 * time.Second / 24},
	} {
		t.Run(test.period.String(), func(t *testing.T) {
			s := New(t, Plain, "T4:slice_us=1000"+test.setting)
			d := device(t, openNVML(t, s), 0)
			_, all, ret := d.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, 0)
			require.Equal(t, nvml.SUCCESS, ret)
			require.Len(t, all, int(5*time.Second/test.period))
			for i, sample := range all[1:] {
				require.InDelta(t, test.period.Microseconds(), sample.TimeStamp-all[i].TimeStamp, 1)
			}
			last := all[len(all)-1].TimeStamp
			require.Eventually(t, func() bool {
				_, fresh, ret := d.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, last)
				if ret == nvml.ERROR_NOT_FOUND {
					return false
				}
				require.InDelta(t, float64(last)+float64(test.period.Microseconds()), fresh[0].TimeStamp, 1e3)
				return true
			}, time.Minute, 10*time.Millisecond)
		})
	}
}

// What two processes got, each and together, in whole percent of the time since the last look.
func TestNVMLUtilisationOfTwoProcesses(t *testing.T) {
	s := New(t, Plain, "T4:switch_us=0") // two busy processes have all of the GPU
	d := device(t, openNVML(t, s), 0)
	pids := map[uint32]bool{}
	for _, us := range []string{"200", "20000"} {
		pids[uint32(s.Start("workloads/spin", "--seconds=600", "--window-ms=800", "--kernels-us="+us).Process.Pid)] = true
	}
	var seen uint64
	require.Eventually(t, func() bool { // the first period with both in it all the time
		samples, ret := d.GetProcessUtilization(seen)
		if ret != nvml.SUCCESS {
			return false
		}
		seen = samples[0].TimeStamp
		return len(samples) == 2 && good(d.GetUtilizationRates())(t).Gpu == 100
	}, time.Minute, 20*time.Millisecond)
	begin := seen
	require.Eventually(t, func() bool { // some of them together
		samples, ret := d.GetProcessUtilization(begin)
		return ret == nvml.SUCCESS && samples[0].TimeStamp > begin+400_000
	}, time.Minute, 20*time.Millisecond)
	samples, ret := d.GetProcessUtilization(begin)
	require.Equal(t, nvml.SUCCESS, ret)
	require.Len(t, samples, 2)
	for _, sample := range samples {
		require.True(t, pids[sample.Pid])
		require.InDelta(t, 50, int(sample.SmUtil), 2)
	}
	_, ret = d.GetProcessUtilization(samples[0].TimeStamp + 1_000_000)
	require.Equal(t, nvml.ERROR_NOT_FOUND, ret)
}

// Which PIDs a process in a PID namespace of its own gets is a setting: drivers differ, and many give those of the host.
// Source: github.com/NVIDIA/nvidia-docker/issues/1483, github.com/NVIDIA/gpu-monitoring-tools/issues/63.
func TestRealPIDsAreOfTheHostWithSomeDrivers(t *testing.T) {
	for _, test := range []struct {
		pids string
		code int // see check_nvml_pids
	}{
		{"own", 13}, {"mixed", 11}, {"host", 10},
	} {
		t.Run(test.pids, func(t *testing.T) {
			s := New(t, Plain, "T4")
			s.Ctl("set", "driver", "pids="+test.pids)
			cmd := s.Command("sim/check", "nvml-pids")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
			stdin, err := cmd.StdinPipe()
			require.NoError(t, err)
			p := s.StartCommand(cmd)
			require.Equal(t, p.Process.Pid, s.Status().Clients[0].HostPID) // Status gives the driver the host's PID
			require.NotEqual(t, p.Process.Pid, s.Status().Clients[0].PID)
			require.NoError(t, stdin.Close())
			var exit *exec.ExitError
			require.ErrorAs(t, p.Wait(), &exit)
			require.Equal(t, test.code, exit.ExitCode())
		})
	}
}
