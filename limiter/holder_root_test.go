//go:build root

package limiter

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A process that takes its lease again as soon as it has given it back gets none while
// the holder waits.
func TestHolderWaitsForALease(t *testing.T) {
	dir := newClaim(t)
	file, err := lease(t, UsagePath(dir), unix.F_RDLCK)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(LimitsPath(dir), limitsSize)) // opened for writing, and closed
	var h Holder
	defer h.Close()
	require.ErrorIs(t, h.Hold("c1", dir), ErrLeased)
	require.ErrorIs(t, h.Hold("c1", dir), ErrLeased)
	require.Eventually(t, func() bool {
		return errors.Is(setLease(file, unix.F_UNLCK), nil) && errors.Is(setLease(file, unix.F_RDLCK), unix.EAGAIN)
	}, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return h.Hold("c1", dir) == nil }, time.Minute, time.Millisecond)
	trimmed, err := TrimUsage(UsagePath(dir))
	require.NoError(t, err)
	assert.False(t, trimmed)
}
