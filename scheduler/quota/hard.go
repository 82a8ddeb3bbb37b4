package quota

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// FromHard reads spec.hard of a ResourceQuota: "limits." or "requests." before the names of
// memory and cores, the lower of the two where both are there. Memory is in the
// units of a container's, which o.MemoryFactor makes MiB of. Kubernetes can't count these,
// for it doesn't know that a container asks for so much of each of its GPUs.
//
// An error names what can't be read. Of that nothing may be had until it can, for somebody
// meant to limit it; the other is in the limits all the same.
func FromHard(hard map[string]scheduler.Amount, o request.Options) (Limits, error) {
	l := NoLimits
	var problem error
	for _, f := range [...]struct {
		name   string
		factor int64
		to     *int64
	}{
		{o.Names.Memory, max(o.MemoryFactor, 1), &l.MemoryMiB},
		{o.Names.Cores, 1, &l.Cores},
	} {
		if f.name == "" {
			continue
		}
		for _, prefix := range []string{"limits.", "requests."} {
			amount, there := hard[prefix+f.name]
			switch {
			case !there:
			case amount.Invalid != "" || amount.Value < 0:
				*f.to = 0
				problem = errors.Join(problem, fmt.Errorf("%s%s: %s: must be a whole number, 0 or more", prefix, f.name, cmp.Or(amount.Invalid, strconv.FormatInt(amount.Value, 10))))
			case amount.Value <= math.MaxInt64/f.factor:
				*f.to = min(*f.to, amount.Value*f.factor)
			}
		}
	}
	return l, problem
}
