//go:build clients

package clients

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/simdriver"
)

// periods is how many are looked at until one in which every container has what is due. In none has one more. One can have less
// while the machine's processors have no time for the program.
const periods = 5

// Two containers, each with numba and its own share of the GPU's time, measured by the GPU's clock.
func TestShares(t *testing.T) {
	for _, m := range []mode{{name: "preload", preload: true}, {name: "library", library: true}, {name: "both", preload: true, library: true}} {
		t.Run(m.name, func(t *testing.T) {
			s := simdriver.New(t, simdriver.Plain, "H200")
			shares := map[uint64]float64{30: 30, 60: 60} // group: percent
			for group, share := range shares {
				c := newContainer(t, s, fmt.Sprint(group))
				c.limit(t, m, limiter.DeviceLimit{MemoryLimitBytes: 8 * giB, CorePercent: uint32(share), Policy: limiter.PolicyForce})
				s.StartCommand(c.command(t, "exec /usr/bin/python3 $TESTDATA/numba_launch.py"))
			}
			var err error
			for range periods {
				if err = period(t, s, shares); err == nil {
					return
				}
				t.Log(err)
			}
			require.NoError(t, err, "in no period have all their share")
		})
	}
}

// period reports each group that had much less than its share for three seconds.
func period(t *testing.T, s *simdriver.Sim, shares map[uint64]float64) (err error) {
	t.Helper()
	before := s.Status()
	time.Sleep(3 * time.Second)
	after := s.Status()
	clock := float64(after.GPUs[0].ClockNanoseconds - before.GPUs[0].ClockNanoseconds)
	for group, share := range shares {
		got := 100 * float64(busy(after, group)-busy(before, group)) / clock
		require.LessOrEqual(t, got, share+5, "group %d", group)
		t.Logf("%.1f %% of the GPU's time with a share of %v %%", got, share)
		if got < share*0.4 {
			err = errors.Join(err, fmt.Errorf("%.1f %% with a share of %v %%", got, share))
		}
	}
	return err
}

func busy(status simdriver.Status, group uint64) uint64 {
	for _, g := range status.Groups {
		if g.ID == group && len(g.GPUs) > 0 {
			return g.GPUs[0].BusyNanoseconds
		}
	}
	return 0
}
