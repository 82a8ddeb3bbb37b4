package oci

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const procDevices = "Character devices:\n195 nvidia\n236 nvidia-caps\n237 nvidia-caps-imex-channels\n510 nvidia-uvm\n\nBlock devices:\n  8 sd\n"

func TestIMEXChannels(t *testing.T) {
	nodes := imexChannels(procDevices, []int{0, 7})
	require.Len(t, nodes, 2)
	require.Equal(t, "/dev/nvidia-caps-imex-channels/channel7", nodes[1].Path)
	require.Equal(t, []int64{237, 7}, []int64{nodes[1].Major, nodes[1].Minor})
	require.Empty(t, imexChannels("Character devices:\n195 nvidia\n236 nvidia-caps\n", []int{0}), "a driver without IMEX")
	require.Empty(t, imexChannels("x nvidia-caps-imex-channels\n", []int{0}))
	require.Empty(t, HostIMEXChannels(nil))
}
