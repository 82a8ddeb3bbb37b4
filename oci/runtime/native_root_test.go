//go:build root

package ociruntime

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// crun calls no createRuntime hook for a checkpoint, so the container would have no limit of the driver.
func TestRestoreWithTheDriversLimit(t *testing.T) {
	for _, mode := range []string{"limiter", "native+limiter"} {
		b := newBench(t)
		b.Config.MemoryEnforcement = mode
		call := Call{Command: "restore", ID: id, Bundle: b.bundle(t, "docker-29")}
		_, err := b.create(context.Background(), &creation{call: call, lowLevel: "/usr/sbin/runc", creator: os.Getpid()})
		if mode == "limiter" {
			require.NoError(t, err)
			require.Len(t, b.claims(t), 1)
			continue
		}
		require.ErrorContains(t, err, "which is not sure for a restored container")
		require.Empty(t, b.claims(t), "nothing is reserved")
	}
}
