package audit

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
)

// stamp tells of a usage file whether it was written since. What is written through a
// mapping it does not tell: the file of a container that is on a GPU is read in any case.
type stamp struct {
	size, inode   int64
	seconds, nano int64
}

// touched says whether a claim's usage file was written, or made again, since it was asked
// last.
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

// damage says what is wrong with the file that a claim's limiter accounts in. One that is
// not there is its container's that is just made or removed: a container can't remove it.
// Of one of another version, as a container has that was started by another release, nobody
// here knows what is right: it is unknown, and no damage.
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
	// Without the host's path: it is the pod's events that say so.
	if _, why, found := strings.Cut(err.Error(), limiter.ErrUsage.Error()+": "); found {
		return "a process of it has overwritten its usage file (/.gpuslice/usage): " + why
	}
	return "its usage file (/.gpuslice/usage) can't be read: " + err.Error()
}
