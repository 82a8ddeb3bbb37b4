package audit

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
)

// stamp does not change with writes through a mapping: files of containers on a GPU are always read.
type stamp struct {
	size, inode   int64
	seconds, nano int64
}

// touched reports whether a claim's usage file was written since the last call.
func (a *Auditor) touched(c *Claim) bool {
	var st unix.Stat_t
	if unix.Lstat(c.usageFile(), &st) != nil {
		return true
	}
	now := stamp{st.Size, int64(st.Ino), st.Mtim.Sec, st.Mtim.Nsec}
	last, known := a.stamps[c.ID]
	a.stamps[c.ID] = now
	return !known || last != now
}

// A missing file is no damage: a container can't remove it. Neither is another release's version.
func damage(c *Claim) string {
	if c.Dir == "" || len(c.Devices) == 0 {
		return ""
	}
	uuids := make([]string, len(c.Devices))
	for i, d := range c.Devices {
		uuids[i] = d.UUID
	}
	err := limiter.CheckUsage(c.usageFile(), uuids)
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, limiter.ErrUsageVersion) || errors.Is(err, limiter.ErrLeased) {
		return ""
	}
	// Without the host's path, because it becomes an event of the pod.
	if _, why, found := strings.Cut(err.Error(), limiter.ErrUsage.Error()+": "); found {
		return "a process of the container overwrote its usage file (/.gpuslice/usage): " + why
	}
	return "the usage file (/.gpuslice/usage) can't be read: " + err.Error()
}
