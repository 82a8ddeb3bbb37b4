//go:build root

package ociruntime

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A signal between the reservation and the start ends the call: the command does not start, and nothing stays reserved.
func TestSignalBeforeTheStart(t *testing.T) {
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		if signal.Ignored(s) { // below nohup, or in the background: it stays so
			require.NotEqual(t, unix.SIGTERM, s)
			continue
		}
		m := newMachine(t, "")
		t.Setenv("SIMGPU_STATE", m.path("sim/state"))
		config, err := LoadConfig(m.path("runtime.yaml"))
		require.NoError(t, err)
		self := m.artefact("bin", "gpuslice")
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
		defer stop()
		reserved := false
		var stderr bytes.Buffer
		r := &Runtime{
			Config: config, Self: self, Stderr: &stderr,
			GPUs:    NewInventory(config, self).GPUs,
			Limiter: func() (Limiter, error) { return FindLimiter(config, self) },
			step: func(step string) {
				if step != "reserved" {
					return
				}
				ids, _ := m.claimed()
				reserved = len(ids) == 1
				seen := make(chan os.Signal, 1)
				signal.Notify(seen, s)
				require.NoError(t, unix.Kill(os.Getpid(), s))
				<-seen
				signal.Stop(seen) // after it was sent to all channels
			},
		}
		started := filepath.Join(m.dir, "started")
		status, err := r.RunProcess(ctx, Process{Name: "held", Path: "/bin/sh", Args: []string{"sh", "-c", "echo >" + started}, Request: []string{"GPUSLICE_MEMORY=1GiB"}})
		require.ErrorContains(t, err, "signal before the start of the command: "+s.String())
		require.Equal(t, exitFailed, status)
		require.True(t, reserved)
		require.NoFileExists(t, started)
		ids, _ := m.claimed()
		require.Empty(t, ids, stderr.String())
	}
}
