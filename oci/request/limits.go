package request

import (
	"github.com/gpuslice/gpuslice/grant"
)

// amounts are what is asked of each of n GPUs, with the operator's defaults.
func (c Config) amounts(r *Request, n int) ([]Amount, error) {
	if err := c.checkCount(n); err != nil {
		return nil, err
	}
	for _, i := range sortedKeys(r.Each) {
		if i >= n {
			return nil, refuse(grant.ErrMalformed, "an amount is of the container's GPU %d (the first is 0), and it asks for %d GPUs: take it away, or ask for more GPUs", i, n)
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

// or takes what is not said from another amount.
func (a Amount) or(other Amount) Amount {
	if a.Memory.IsZero() {
		a.Memory = other.Memory
	}
	if a.CorePercent == 0 {
		a.CorePercent = other.CorePercent
	}
	return a
}

// complete adds what neither the container nor the default says.
func (c Config) complete(a Amount) (Amount, error) {
	switch {
	case !a.Memory.IsZero():
	case c.AllowWholeGPUs:
		a.Memory = Size{Percent: 100}
	default:
		return Amount{}, refuse(ErrForbidden, "how much memory is not said, and whole GPUs are not allowed: set %s (8GiB, 25%%), or let the operator set default.memory or allowWholeGPUs in %s", EnvMemory, c.Path)
	}
	if a.CorePercent == 0 {
		a.CorePercent = c.Maximum.CorePercent // not limited would be more
	}
	if a.CorePercent > c.Maximum.CorePercent && c.Maximum.CorePercent > 0 {
		return Amount{}, refuse(ErrForbidden, "%d %% of compute time is asked, and a container may have %d %% of a GPU at most (maximum.cores in %s): ask for less", a.CorePercent, c.Maximum.CorePercent, c.Path)
	}
	return a, nil
}

// checkCount holds a number of GPUs against the maximum.
func (c Config) checkCount(n int) error {
	if most := c.Maximum.Devices; most > 0 && n > most {
		return refuse(ErrForbidden, "%d GPUs are asked for, and a container may have %d at most (maximum.devices in %s): ask for fewer", n, most, c.Path)
	}
	if n > grant.MaxShares {
		return refuse(grant.ErrMalformed, "%d GPUs are asked for, and a container can have %d at most: name some", n, grant.MaxShares)
	}
	return nil
}

// checkMaximum holds a share of a GPU against the maximum. The compute time of a MIG
// device is its own and takes nothing from others.
func (c Config) checkMaximum(d candidate, share grant.Share) error {
	most := c.Maximum
	if !most.Memory.IsZero() && share.MemoryMiB > most.Memory.Of(d.GPU) {
		return refuse(ErrForbidden, "%d MiB of %v would be given, and a container may have %d MiB of it at most (maximum.memory: %v in %s): ask for less",
			share.MemoryMiB, d, most.Memory.Of(d.GPU), most.Memory, c.Path)
	}
	if most.CorePercent > 0 && !d.mig() && (share.CorePercent == 0 || share.CorePercent > most.CorePercent) {
		return refuse(ErrForbidden, "%d %% (0: no limit) of the compute time of %v is asked, and a container may have %d %% of a GPU at most (maximum.cores in %s): ask for less",
			share.CorePercent, d, most.CorePercent, c.Path)
	}
	return nil
}
