//go:build root

package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestReaderOfAReadOnlyMount(t *testing.T) {
	dir := t.TempDir()
	everyState(t, dir)
	require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""), "bind mount: this test needs root")
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	require.NoError(t, unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	assert.Len(t, readOnly(t, dir).Entries, 5)
}
