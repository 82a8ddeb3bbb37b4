//go:build root

package vgpufs

import (
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Programs with different locks mount the file system when they need it: the first one that does hides no other.
func TestTurnsAreMountedOnce(t *testing.T) {
	for range 20 {
		state := t.TempDir()
		begin := make(chan struct{})
		var programs sync.WaitGroup
		for range 8 {
			programs.Go(func() {
				<-begin
				assert.NoError(t, MountTurns(state))
			})
		}
		close(begin)
		programs.Wait()
		table, err := os.ReadFile("/proc/thread-self/mountinfo")
		require.NoError(t, err)
		count := strings.Count(string(table), " "+TurnsDir(state)+" ")
		for range count {
			require.NoError(t, UnmountTurns(state))
		}
		require.Equal(t, 1, count)
	}
}
