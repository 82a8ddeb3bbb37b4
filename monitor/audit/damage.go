package audit

import (
	"errors"
	"io/fs"

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
	return err.Error()
}
