package limiter

import "fmt"

// CoreUsage is a container's compute time on a GPU, as it reports itself.
type CoreUsage struct {
	BusyNanoseconds      uint64 // with work on the GPU; shared with others, it counts in part
	ThrottledNanoseconds uint64 // waited by launches
	Launches             uint64
	// LastLaunchNanoseconds is by CLOCK_MONOTONIC; 0: never.
	LastLaunchNanoseconds uint64
}

func (b *usageCompute) usage() CoreUsage {
	return CoreUsage{
		BusyNanoseconds: b.busy, ThrottledNanoseconds: b.throttled, Launches: b.launches, LastLaunchNanoseconds: b.lastLaunch,
	}
}

// ReadCoreUsage reads only the header.
func ReadCoreUsage(path string) ([]CoreUsage, error) {
	f, err := openUsage(path)
	if err != nil {
		return nil, err
	}
	defer f.close()
	var header usageHeader
	if _, err := f.ReadAt(bytesOf(&header), 0); err != nil {
		return nil, fmt.Errorf("read usage %s: %w: header: %w", path, ErrUsage, err)
	}
	var u Usage
	if err := header.decode(&u); err != nil {
		return nil, fmt.Errorf("read usage %s: %w", path, err)
	}
	cores := make([]CoreUsage, len(u.Devices))
	for i, d := range u.Devices {
		cores[i] = d.Cores
	}
	return cores, nil
}
