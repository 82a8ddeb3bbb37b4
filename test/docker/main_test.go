// Package docker tests containers that no Kubernetes speaks for, end to end: Debian's
// dockerd and podman, containerd with the runtime wrapper, runc under all of them, the
// simulated driver as the card and the limiter inside. What a container may do is asked
// inside it, not believed from its spec.
package docker_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// newMachine makes a machine with cards, for the test's time.
func newMachine(t testing.TB, cards ...string) *harness.Machine {
	m, err := harness.NewMachine(context.Background(), cards...)
	t.Cleanup(func() {
		if m != nil {
			require.NoError(t, m.Close())
		}
	})
	require.NoError(t, err)
	require.NoError(t, m.WriteRuntimeConfig(""))
	return m
}

// newDockerd starts a docker daemon on a machine, for the test's time.
func newDockerd(t testing.TB, m *harness.Machine, o harness.DockerdOptions) *harness.Dockerd {
	d, err := harness.NewDockerd(context.Background(), m, o)
	t.Cleanup(func() {
		if d == nil {
			return
		}
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", d.LogTail(40))
		}
		require.NoError(t, d.Close(context.Background()))
	})
	require.NoError(t, err)
	return d
}
