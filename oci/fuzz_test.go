package oci

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Of /proc/devices no number is the driver's that isn't in it, and the GPUs' own is never another's.
func FuzzDriverMajors(f *testing.F) {
	f.Add("Character devices:\n  1 mem\n195 nvidia\n235 nvidia-caps\n234 nvidia-uvm\n\nBlock devices:\n259 nvidia\n")
	f.Add("235 nvidia-caps-imex-channels\n-1 nvidia-x\n99999999999999999999 nvidia-uvm\n")
	f.Fuzz(func(t *testing.T, text string) {
		m := driverMajors(text)
		all := slices.Concat(m.Caps, m.Other)
		require.NotContains(t, all, int64(nvidiaMajor))
		require.LessOrEqual(t, len(all), strings.Count(text, "nvidia"))
	})
}
