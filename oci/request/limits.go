package request

import (
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// amounts returns the amount for each of n GPUs, with the operator's defaults.
func (c Config) amounts(r *Request, n int) ([]Amount, error) {
	if err := c.checkCount(n); err != nil {
		return nil, err
	}
	for _, i := range sortedKeys(r.Each) {
		if i >= n {
			return nil, grant.Errorf(grant.ErrMalformed, "an amount is set for GPU %d of the container (the first is 0), but it requests %d GPUs: remove the amount, or request more GPUs", i, n)
		}
	}
	amounts := make([]Amount, n)
	for i := range amounts {
		a, err := c.complete(r.Each[i].or(r.Amount).or(c.Default.Amount))
		if err != nil {
			return nil, err
		}
		amounts[i] = a
	}
	return amounts, nil
}

func (a Amount) or(other Amount) Amount {
	if a.Memory.IsZero() {
		a.Memory = other.Memory
	}
	if a.CorePercent == 0 {
		a.CorePercent = other.CorePercent
	}
	return a
}

func (c Config) complete(a Amount) (Amount, error) {
	switch {
	case !a.Memory.IsZero():
	case c.AllowWholeGPUs:
		a.Memory = Size{Percent: 100}
	default:
		return Amount{}, grant.Errorf(ErrForbidden, "the request has no memory, and whole GPUs are not allowed: set %s (8GiB, 25%%), or set default.memory or allowWholeGPUs in %s", api.EnvMemory, c.Path)
	}
	if a.CorePercent == 0 {
		a.CorePercent = c.Maximum.CorePercent // unlimited would exceed it
	}
	if a.CorePercent > c.Maximum.CorePercent && c.Maximum.CorePercent > 0 {
		return Amount{}, grant.Errorf(ErrForbidden, "%d %% of compute time exceeds the maximum of %d %% (maximum.cores in %s): request less", a.CorePercent, c.Maximum.CorePercent, c.Path)
	}
	return a, nil
}

func (c Config) checkCount(n int) error {
	if most := c.Maximum.Devices; most > 0 && n > most {
		return grant.Errorf(ErrForbidden, "%d GPUs exceed the maximum of %d (maximum.devices in %s): request fewer", n, most, c.Path)
	}
	if n > grant.MaxShares {
		return grant.Errorf(grant.ErrMalformed, "%d GPUs exceed the maximum of %d for one container: request fewer", n, grant.MaxShares)
	}
	return nil
}

// checkMaximum does not limit a MIG device's compute time, which no other device uses.
func (c Config) checkMaximum(d candidate, share grant.Share) error {
	most := c.Maximum
	if !most.Memory.IsZero() && share.MemoryMiB > most.Memory.Of(d.GPU) {
		return grant.Errorf(ErrForbidden, "%d MiB of %v exceed the maximum of %d MiB (maximum.memory: %v in %s): request less",
			share.MemoryMiB, d, most.Memory.Of(d.GPU), most.Memory, c.Path)
	}
	if most.CorePercent > 0 && !d.mig() && (share.CorePercent == 0 || share.CorePercent > int(most.CorePercent)) {
		return grant.Errorf(ErrForbidden, "%d %% (0: no limit) of the compute time of %v exceeds the maximum of %d %% (maximum.cores in %s): request less",
			share.CorePercent, d, most.CorePercent, c.Path)
	}
	return nil
}
