package request

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Devices says which GPUs are meant: one of Count, All and Names, or nothing.
type Devices struct {
	// Count is any so many GPUs.
	Count int
	// All are all GPUs that may be used.
	All bool
	// Names are certain ones, in the container's order: UUIDs, or NVML's indices ("0",
	// and "0:1" for the MIG device 1 of GPU 0).
	Names []string
}

// IsZero says that nothing is said of devices.
func (d Devices) IsZero() bool { return d.Count == 0 && !d.All && len(d.Names) == 0 }

// Equal says whether both mean the same.
func (d Devices) Equal(other Devices) bool {
	return d.Count == other.Count && d.All == other.All && slices.Equal(d.Names, other.Names)
}

// String writes the devices as ParseDevices reads them.
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

// devicePrefix tells names from a count, as in docker run --gpus device=0.
const devicePrefix = "device="

// devicesForm is what ParseDevices reads, for messages.
const devicesForm = "write a number of GPUs (2), all, or device= and indices or UUIDs (device=0,1)"

// isIndex says whether a name is a GPU's index, or a MIG device's ("0:1").
func isIndex(name string) bool {
	gpu, device, isMIG := strings.Cut(name, ":")
	ordinal := func(text string) bool { return isNumber(text) && len(text) <= 4 }
	return ordinal(gpu) && (!isMIG || ordinal(device))
}

// ParseDevices reads which GPUs are meant, by the grammar of docker run --gpus:
//
//	2              any two GPUs        (also count=2)
//	all            all that may be used
//	device=0       the GPU with the index 0
//	device=0,GPU-… these two, in this order
//	GPU-…,0        the same: what has a UUID or a comma can't be a count
//
// So a number alone is a count. 0, which could only be meant as an index, is refused
// with what to write.
func ParseDevices(text string) (Devices, error) { return quoted(text, parseDevices) }

func parseDevices(text string) (Devices, error) {
	names, named := strings.CutPrefix(text, devicePrefix)
	count, counted := strings.CutPrefix(text, "count=")
	switch {
	case text == "all", named && names == "all", counted && count == "all":
		return Devices{All: true}, nil
	case counted, isDigits(text):
		return parseCount(count)
	default:
		return parseNames(names)
	}
}

func isDigits(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

func parseCount(text string) (Devices, error) {
	n, err := strconv.Atoi(text)
	switch {
	case !isDigits(text):
		return Devices{}, refuse(grant.ErrMalformed, "is not a number of GPUs: %s", devicesForm)
	case err == nil && n == 0:
		return Devices{}, refuse(grant.ErrMalformed, "is a number of GPUs, and none is no request: for the GPU with index 0 write device=0")
	case err != nil || n > grant.MaxShares:
		return Devices{}, refuse(grant.ErrMalformed, "is too many GPUs: a container may have %d; a GPU by its index is device=INDEX", grant.MaxShares)
	}
	return Devices{Count: n}, nil
}

func parseNames(text string) (Devices, error) {
	if strings.Count(text, ",") >= grant.MaxShares {
		return Devices{}, refuse(grant.ErrMalformed, "is too many GPUs: a container may have %d", grant.MaxShares)
	}
	var d Devices
	for name := range strings.SplitSeq(text, ",") {
		if err := validateName(name); err != nil {
			return Devices{}, err
		}
		if slices.Contains(d.Names, name) {
			return Devices{}, refuse(grant.ErrMalformed, "names the GPU %s twice: name each once", name)
		}
		d.Names = append(d.Names, name)
	}
	return d, nil
}

// validateName wants a UUID or an index.
func validateName(name string) error {
	if isIndex(name) {
		return nil
	}
	if strings.HasPrefix(name, "GPU-") || strings.HasPrefix(name, "MIG-") {
		if err := grant.ValidateUUID(name); err != nil {
			return fmt.Errorf("names the GPU %s: %w", quote.Short(name), err)
		}
		return nil
	}
	return refuse(grant.ErrMalformed, "names the GPU %s, which is neither an index nor a UUID: %s", quote.Short(name), devicesForm)
}
