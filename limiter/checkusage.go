package limiter

import (
	"fmt"
	"strings"
)

// mostUsage is more than any node's GPUs have: 1 PiB.
const mostUsage = 1 << 50

// CheckUsage says whether a usage file, of the GPUs in that order, is as a limiter
// leaves it; an error says what its container has done to it, or
// that it is of another version and nothing is known of it (ErrUsageVersion). That its numbers are true
// it does not say.
func CheckUsage(path string, uuids []string) error {
	f, err := openUsage(path)
	if err != nil {
		return err
	}
	defer f.close()
	damaged := func(format string, args ...any) error {
		return fmt.Errorf("check usage %s: %w: %s", path, ErrUsage, fmt.Sprintf(format, args...))
	}
	if err := otherVersion(f); err != nil {
		return fmt.Errorf("check usage %s: %w", path, err)
	}
	if f.stat.Size != usageSize {
		return damaged("its size is %d bytes, not %d", f.stat.Size, int64(usageSize))
	}
	u, err := decodeUsage(f, func(int) bool { return false })
	if err != nil {
		return fmt.Errorf("check usage %s: %w", path, err)
	}
	if len(u.Devices) != len(uuids) {
		return damaged("it is of %d GPUs, not %d", len(u.Devices), len(uuids))
	}
	for i, d := range u.Devices {
		if !strings.EqualFold(d.UUID, uuids[i]) {
			return damaged("GPU %d is %s, not %s", i, d.UUID, uuids[i])
		}
		if d.UsedBytes > mostUsage {
			return damaged("GPU %d: %d bytes in use, more than there can be", i, d.UsedBytes)
		}
	}
	return nil
}
