package request

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/grant/size"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Size is GPU memory.
type Size = size.Size

// Cores is compute time in percent of a GPU. 0 is not set.
type Cores int

// Amount is a part of one GPU. Fields that are zero are not set.
type Amount struct {
	Memory      Size  `yaml:"memory"`
	CorePercent Cores `yaml:"cores"`
}

func (a Amount) String() string {
	if a.CorePercent == 0 {
		return fmt.Sprintf("%v of memory", a.Memory)
	}
	return fmt.Sprintf("%v of memory and %d %% of compute time", a.Memory, a.CorePercent)
}

// ParseCores reads compute time in whole percent, with or without a %.
func ParseCores(text string) (Cores, error) {
	return quote.Reading(text, func(text string) (Cores, error) {
		digits := strings.TrimSuffix(text, "%")
		percent, err := strconv.Atoi(digits)
		if err != nil || !size.IsNumber(digits) || percent < 1 || percent > grant.MaxCorePercent {
			return 0, grant.Errorf(grant.ErrMalformed, "is not compute time in percent: use a whole number from 1 to %d", grant.MaxCorePercent)
		}
		return Cores(percent), nil
	})
}
