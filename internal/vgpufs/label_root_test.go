//go:build root

package vgpufs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Files keep their labels while SELinux is disabled.
func TestLabelOfADirectory(t *testing.T) {
	claim := filepath.Join(t.TempDir(), "claim")
	require.NoError(t, os.Mkdir(claim, 0o755))
	label, err := labelOf(claim, true) // with SELinux it has one
	require.NoError(t, err)
	if label == "" {
		label = "system_u:object_r:container_file_t:s0"
		require.NoError(t, unix.Setxattr(claim, "security.selinux", []byte(label+"\x00"), 0))
	}
	for on, want := range map[bool]string{true: label, false: ""} {
		got, err := labelOf(claim, on)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	t.Cleanup(func() { require.NoError(t, RemoveAll(claim)) })
	require.NoError(t, Mount(claim))
}
