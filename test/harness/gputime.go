package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Busy is the command of a program that keeps its GPU busy with kernels of 2 ms, which it does not wait for. On a slow machine
// they are longer: a program of an emulated processor loses it for longer than the few milliseconds of work that a share may have
// in flight, and would leave the GPU idle.
var Busy = []string{WorkloadDir + "/spin", "--seconds=100000", fmt.Sprint("--kernels-us=", (2 * time.Millisecond * slowness()).Microseconds()), "--window-ms=200"}

// BusyEnv is the environment of a container by which the simulated driver accounts for it under this number.
func BusyEnv(group int) string { return fmt.Sprint("SIMGPU_GROUP=", group) }

// BusyPrograms gives all programs of Busy, and probes of gpuslice verify, the machine's processors before others: a host of GPUs has
// more of them.
func BusyPrograms() error {
	const nice = -15
	pids, err := Processes(func(program, _ string) bool { return program == "spin" || program == "gpuslice-probe" })
	errs := []error{err}
	for _, pid := range pids {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid)) // it may be gone
		for _, task := range tasks {
			tid, err := strconv.Atoi(filepath.Base(task))
			if err == nil {
				err = syscall.Setpriority(syscall.PRIO_PROCESS, tid, nice)
			}
			if !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// KeepBusy repeats BusyPrograms until it is stopped: probes start a process for each command.
func KeepBusy() (stop func() error) {
	done, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			select {
			case <-done:
				failed <- nil
				return
			case <-time.After(100 * time.Millisecond):
				err = BusyPrograms()
			}
		}
		failed <- err
	}()
	return func() error { close(done); return <-failed }
}

// GPUTime is a GPU's clock, and how long each group has had the GPU by then, in ns.
type GPUTime struct {
	Clock uint64
	Busy  map[int]uint64
}

// Percent is what a group has had of the GPU since then.
func (t GPUTime) Percent(since GPUTime, group int) float64 {
	return 100 * float64(t.Busy[group]-since.Busy[group]) / float64(t.Clock-since.Clock)
}

// GPUTime is what the simulated driver has counted of a GPU, to the nanosecond.
func (m *Machine) GPUTime(ctx context.Context, index int) (GPUTime, error) {
	text, err := m.Simctl(ctx, "status", "-o", "json")
	if err != nil {
		return GPUTime{}, err
	}
	var status struct {
		GPUs []struct {
			ClockNs uint64 `json:"clock_ns"`
		}
		Groups []struct {
			ID   int
			GPUs []struct {
				Index  int
				BusyNs uint64 `json:"busy_ns"`
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return GPUTime{}, err
	}
	if index >= len(status.GPUs) {
		return GPUTime{}, fmt.Errorf("there are %d GPUs", len(status.GPUs))
	}
	t := GPUTime{Clock: status.GPUs[index].ClockNs, Busy: map[int]uint64{}}
	for _, g := range status.Groups {
		for _, one := range g.GPUs {
			if one.Index == index {
				t.Busy[g.ID] = one.BusyNs
			}
		}
	}
	return t, nil
}

// HoldShares measures periods of a GPU's own clock until one in which the groups have divided what they had of it by their shares,
// give or take within points of 100, and none has had more than that part of all. It fails after ten: a machine does not always run the programs that launch, and a limiter that
// does not share never has one. How much they had together is no question here: a GPU's clock is the machine's, and a busy machine
// leaves the GPU idle. In test/limiter the rules are played with a clock of their own, and there they fill the GPU.
func (m *Machine) HoldShares(ctx context.Context, index int, shares map[int]int, within float64) error {
	_, err := m.MeasureShares(ctx, index, shares, within)
	return err
}

// MeasureShares is HoldShares, and returns what each group had in that period, in percent of the GPU's time.
func (m *Machine) MeasureShares(ctx context.Context, index int, shares map[int]int, within float64) (map[int]float64, error) {
	const periods, period, patience = 10, uint64(3 * time.Second), time.Minute
	var seen []string
	total := 0
	for _, share := range shares {
		total += share
	}
	for range periods {
		if err := BusyPrograms(); err != nil {
			return nil, err
		}
		var from, to GPUTime
		err := Until(ctx, patience, func(ctx context.Context) (err error) {
			from, err = m.GPUTime(ctx, index)
			for group := range shares {
				if err == nil && from.Busy[group] == 0 {
					err = fmt.Errorf("the container of group %d does not work", group)
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		err = Until(ctx, patience, func(ctx context.Context) (err error) {
			to, err = m.GPUTime(ctx, index)
			if err == nil && to.Clock < from.Clock+period {
				err = errors.New("the GPU's clock does not move")
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		has, sum, all := map[int]float64{}, 0., true
		for group := range shares {
			has[group] = math.Round(10*to.Percent(from, group)) / 10
			sum += has[group]
		}
		for group, share := range shares {
			part := 100 * float64(share) / float64(total)
			all = all && math.Abs(100*has[group]/sum-part) <= within && has[group] <= part+within
		}
		if seen = append(seen, fmt.Sprint(has)); all {
			return has, nil
		}
	}
	return nil, fmt.Errorf("shares of %v: in no period of %v of the GPU's clock have the containers divided it by them: %s", shares, time.Duration(period), strings.Join(seen, ", "))
}
