package main

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// A device node that a container is given by the driver's word has a minor number that there is.
func FuzzCapabilityMinor(f *testing.F) {
	f.Add([]byte("DeviceFileMinor: 12\nDeviceFileMode: 292\n"))
	f.Add([]byte("DeviceFileMinor: -1\n"))
	f.Add([]byte("DeviceFileMinor: 1048576\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		minor, err := capabilityMinor(fstest.MapFS{"access": {Data: data}}, "access")
		if err != nil {
			require.Zero(t, minor)
			return
		}
		require.True(t, minor >= 0 && minor < 1<<20, minor)
	})
}
