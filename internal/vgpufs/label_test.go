package vgpufs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Commas separate a label's categories, and mount options too.
func TestMountHasTheLabelOfItsDirectory(t *testing.T) {
	bare := options("")
	require.NotContains(t, bare, "context")
	require.Equal(t, bare+`,context="system_u:object_r:container_file_t:s0:c1,c2"`, options("system_u:object_r:container_file_t:s0:c1,c2"))
}
