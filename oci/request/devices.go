package request

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/grant/size"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Devices selects GPUs. At most one field is set.
type Devices struct {
	Count int
	All   bool
	// Names are UUIDs or NVML's indices ("0", "0:1" for MIG device 1 of GPU 0).
	Names []string
}

// IsZero reports whether no GPUs are selected.
func (d Devices) IsZero() bool { return d.Count == 0 && !d.All && len(d.Names) == 0 }

func (d Devices) String() string {
	switch {
	case d.All:
		return "all"
	case len(d.Names) > 0:
		return devicePrefix + strings.Join(d.Names, ",")
	default:
		return strconv.Itoa(d.Count)
	}
}

// devicePrefix is before names, as in docker run --gpus device=0.
const devicePrefix = "device="

const devicesForm = "use a number of GPUs (2), all, or device= and indices or UUIDs (device=0,1)"

// isIndex reports whether a name is the index of a GPU or of a MIG device ("0:1").
func isIndex(name string) bool {
	gpu, device, isMIG := strings.Cut(name, ":")
	ordinal := func(text string) bool { return size.IsNumber(text) && len(text) <= 4 }
	return ordinal(gpu) && (!isMIG || ordinal(device))
}

// ParseDevices reads a selection of GPUs in the grammar of docker run --gpus:
//
//	2              any two GPUs        (also count=2)
//	all            all that are allowed
//	device=0       the GPU with index 0
//	device=0,GPU-… these two, in this order
//	GPU-…,0        the same: a UUID or a comma makes it names
func ParseDevices(text string) (Devices, error) { return quote.Reading(text, parseDevices) }

func parseDevices(text string) (Devices, error) {
	names, named := strings.CutPrefix(text, devicePrefix)
	count, counted := strings.CutPrefix(text, "count=")
	switch {
	case text == "all", named && names == "all", counted && count == "all":
		return Devices{All: true}, nil
	case counted, size.IsDigits(text):
		return parseCount(count)
	default:
		return parseNames(names)
	}
}

func parseCount(text string) (Devices, error) {
	n, err := strconv.Atoi(text)
	switch {
	case !size.IsDigits(text):
		return Devices{}, grant.Errorf(grant.ErrMalformed, "is not a number of GPUs: %s", devicesForm)
	case err == nil && n == 0:
		return Devices{}, grant.Errorf(grant.ErrMalformed, "is a number of GPUs, and must be 1 or more: for the GPU with index 0 use device=0")
	case err != nil || n > grant.MaxShares:
		return Devices{}, grant.Errorf(grant.ErrMalformed, "is too many GPUs: the maximum is %d; for a GPU by its index use device=INDEX", grant.MaxShares)
	}
	return Devices{Count: n}, nil
}

func parseNames(text string) (Devices, error) {
	if strings.Count(text, ",") >= grant.MaxShares {
		return Devices{}, grant.Errorf(grant.ErrMalformed, "is too many GPUs: the maximum is %d", grant.MaxShares)
	}
	var d Devices
	for name := range strings.SplitSeq(text, ",") {
		if err := validateName(name); err != nil {
			return Devices{}, err
		}
		if slices.Contains(d.Names, name) {
			return Devices{}, grant.Errorf(grant.ErrMalformed, "has the GPU %s twice: list it once", name)
		}
		d.Names = append(d.Names, name)
	}
	return d, nil
}

func validateName(name string) error {
	if isIndex(name) {
		return nil
	}
	if strings.HasPrefix(name, "GPU-") || strings.HasPrefix(name, "MIG-") {
		if err := grant.ValidateUUID(name); err != nil {
			return fmt.Errorf("has the GPU %s: %w", quote.Short(name), err)
		}
		return nil
	}
	return grant.Errorf(grant.ErrMalformed, "has %s, which is neither a GPU index nor a UUID: %s", quote.Short(name), devicesForm)
}
