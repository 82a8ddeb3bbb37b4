package limiter

import "fmt"

// mostUsage, 1 PiB, is more than the GPUs of any node have.
const mostUsage = 1 << 50

// CheckUsage returns an error if a container damaged its usage file for these GPUs, or if it has another version
// (ErrUsageVersion). The numbers can still be false.
func CheckUsage(path string, uuids []string) error {
	f, err := openUsage(path)
	if err != nil {
		return err
	}
	defer f.close()
	if err := checkUsage(f, append([]string{}, uuids...)); err != nil {
		return fmt.Errorf("check usage %s: %w", path, err)
	}
	return nil
}

func checkUsage(f *file, uuids []string) error {
	if err := otherVersion(f); err != nil {
		return err
	}
	if f.stat.Size != usageSize {
		return fmt.Errorf("%w: its size is %d bytes, not %d", ErrUsage, f.stat.Size, usageSize)
	}
	var r Reader
	if err := r.decodeUsage(f, uuids, func(int) bool { return false }); err != nil {
		return err
	}
	for i, d := range r.usage.Devices {
		if d.UsedBytes > mostUsage {
			return fmt.Errorf("%w: GPU %d: %d bytes in use, more than possible", ErrUsage, i, d.UsedBytes)
		}
	}
	return nil
}
