package grant

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/internal/quote"
)

// Bounds, so that a hostile annotation costs little, and every product fits an int64.
const (
	// MaxAnnotationBytes is Kubernetes' limit of all annotations of a pod (TotalAnnotationSizeLimitB).
	MaxAnnotationBytes = 256 << 10
	// MaxContainers is the highest number of positions or container names in one annotation.
	MaxContainers = 128
	// MaxShares is the highest number of GPUs of a container: the limits file has 16 records.
	MaxShares = 16
	// MaxMemoryMiB is the most memory of one share, 16 TiB.
	MaxMemoryMiB = 16 << 20
	// MaxCorePercent is the whole compute time of a GPU.
	MaxCorePercent = 100
)

// ValidateUUID checks a GPU's name: "GPU-" or "MIG-" and a UUID in lower-case hexadecimal. A second spelling
// would be a second GPU.
func ValidateUUID(uuid string) error {
	const form = `must be a GPU's UUID as "nvidia-smi -L" prints it, GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx (or MIG-…) in lower-case hexadecimal`
	rest, ok := strings.CutPrefix(uuid, "GPU-")
	if !ok {
		rest, ok = strings.CutPrefix(uuid, "MIG-")
	}
	if !ok || len(rest) != 36 {
		return Errorf(ErrMalformed, "%s", form)
	}
	for i := range len(rest) {
		c := rest[i]
		switch i {
		case 8, 13, 18, 23:
			ok = c == '-'
		default:
			ok = '0' <= c && c <= '9' || 'a' <= c && c <= 'f'
		}
		if !ok {
			return Errorf(ErrMalformed, "%s", form)
		}
	}
	return nil
}

// Validate checks the share without the node.
func (s Share) Validate() error {
	if err := ValidateUUID(s.UUID); err != nil {
		return fmt.Errorf("uuid %s: %w", quote.Short(s.UUID), err)
	}
	if s.MemoryMiB < 1 || s.MemoryMiB > MaxMemoryMiB {
		return Errorf(ErrMalformed, "memory %d MiB: must be from 1 to %d", s.MemoryMiB, MaxMemoryMiB)
	}
	if s.CorePercent < 0 || s.CorePercent > MaxCorePercent {
		return Errorf(ErrMalformed, "cores %d: must be a percentage from 0 to %d (0: not limited)", s.CorePercent, MaxCorePercent)
	}
	return nil
}

// ValidateShares checks one container's shares: at least one, at most MaxShares, each valid, no GPU twice.
func ValidateShares(shares []Share) error {
	if len(shares) == 0 {
		return Errorf(ErrMalformed, "no share: a grant names at least one GPU")
	}
	if len(shares) > MaxShares {
		return Errorf(ErrMalformed, "%d shares: a container may have at most %d", len(shares), MaxShares)
	}
	for i, share := range shares {
		if err := share.Validate(); err != nil {
			return fmt.Errorf("share %d: %w", i, err)
		}
		if j := IndexOf(shares[:i], share.UUID); j >= 0 {
			return Errorf(ErrMalformed, "share %d: GPU %s is already share %d: name a GPU once and add the amounts up", i, share.UUID, j)
		}
	}
	return nil
}

// IndexOf returns the position of the GPU's share, or -1.
func IndexOf(shares []Share, uuid string) int {
	return slices.IndexFunc(shares, func(s Share) bool { return s.UUID == uuid })
}
