package native

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// Limit is the memory that a control group may have of a GPU.
type Limit struct {
	UUID  string `json:"uuid"`
	Bytes uint64 `json:"bytes"`
}

// State is what the driver reports of a control group on a GPU.
type State struct {
	UUID string `json:"uuid"`
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
	Used uint64 `json:"used"`
}

// Driver is NVML: package nvidia's Cache.
type Driver interface {
	SetMemoryLimit(ctx context.Context, uuid, cgroup string, hard uint64) error
	MemoryLimit(ctx context.Context, uuid, cgroup string) (hardware.MemoryLimit, error)
}

const bytesPerMiB = 1 << 20

// Limits returns the limits of shares. There is no soft one: what a container is sure to have is the ledger's decision.
func Limits(shares []grant.Share) ([]Limit, error) {
	if len(shares) == 0 {
		return nil, errors.New("it has no share of a GPU")
	}
	var limits []Limit
	for _, s := range shares {
		if grant.IsMIG(s.UUID) {
			return nil, fmt.Errorf("%s is a MIG device, for which the driver has no limits", s.UUID)
		}
		if s.MemoryMiB <= 0 || s.MemoryMiB > math.MaxInt64/bytesPerMiB {
			return nil, fmt.Errorf("a share of %d MiB on %s is no limit", s.MemoryMiB, s.UUID)
		}
		limits = append(limits, Limit{s.UUID, uint64(s.MemoryMiB) * bytesPerMiB})
	}
	return limits, nil
}

// Apply sets the limits of a group in which nothing has run, and reads them back. After an error it removes them.
func Apply(ctx context.Context, d Driver, cgroup string, limits []Limit) (states []State, err error) {
	states, err = Change(ctx, d, cgroup, limits)
	if err != nil {
		for _, l := range limits {
			_ = d.SetMemoryLimit(context.WithoutCancel(ctx), l.UUID, cgroup, hardware.NoMemoryLimit)
		}
	}
	return states, err
}

// Change sets limits and reads them back. After an error some can be set.
func Change(ctx context.Context, d Driver, cgroup string, limits []Limit) (states []State, err error) {
	for _, l := range limits {
		if err := d.SetMemoryLimit(ctx, l.UUID, cgroup, l.Bytes); err != nil {
			return nil, fmt.Errorf("set the driver's memory limit: %w", err)
		}
	}
	if states, err = Read(ctx, d, cgroup, limits); err != nil {
		return nil, err
	}
	return states, Check(limits, states)
}

// Read returns the states of the GPUs of these limits.
func Read(ctx context.Context, d Driver, cgroup string, limits []Limit) (states []State, err error) {
	for _, l := range limits {
		m, err := d.MemoryLimit(ctx, l.UUID, cgroup)
		if err != nil {
			return nil, fmt.Errorf("read the driver's memory limit back: %w", err)
		}
		states = append(states, State{l.UUID, m.Soft, m.Hard, m.Used})
	}
	return states, nil
}

// Check compares limits with what was read back.
func Check(limits []Limit, states []State) error {
	if len(limits) != len(states) {
		return fmt.Errorf("the driver's memory limits are those of %d GPUs, and %d were set", len(states), len(limits))
	}
	for i, l := range limits {
		if s := states[i]; s.UUID != l.UUID || s.Hard != l.Bytes || s.Soft != 0 {
			return fmt.Errorf("the driver's memory limit of %s is %d bytes (soft %d, of %s), not the %d that were set", l.UUID, s.Hard, s.Soft, s.UUID, l.Bytes)
		}
	}
	return nil
}
