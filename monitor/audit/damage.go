package audit

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/gpuslice/gpuslice/limiter"
)

// damage says what is wrong with the file that a claim's limiter accounts in. One that is
// not there is its container's that is just made or removed: a container can't remove it.
func damage(c *Claim) string {
	if c.UsageFile == "" || len(c.Devices) == 0 {
		return ""
	}
	uuids := make([]string, len(c.Devices))
	for i, d := range c.Devices {
		uuids[i] = d.UUID
	}
	err := limiter.CheckUsage(c.UsageFile, uuids)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	// Without the host's path: it is the pod's events that say so.
	if _, why, found := strings.Cut(err.Error(), limiter.ErrUsage.Error()+": "); found {
		return "a process of it has overwritten its usage file (/usr/local/vgpu/usage): " + why
	}
	return "its usage file (/usr/local/vgpu/usage) can't be read: " + err.Error()
}
