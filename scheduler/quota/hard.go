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

// FromHard reads spec.hard of a ResourceQuota: "limits." or "requests." plus the resource name, the lower
// of both. Kubernetes can't enforce these, because amounts are per GPU.
//
// An unreadable limit becomes 0, so that nothing exceeds what was meant, and is reported in the error.
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
				problem = errors.Join(problem, fmt.Errorf("%s%s: %s: must be an integer of at least 0", prefix, f.name, cmp.Or(amount.Invalid, strconv.FormatInt(amount.Value, 10))))
			case amount.Value <= math.MaxInt64/f.factor:
				*f.to = min(*f.to, amount.Value*f.factor)
			}
		}
	}
	return l, problem
}
