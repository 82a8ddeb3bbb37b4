//go:build root

package ociruntime

import (
	"os"
	"path/filepath"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The engine's log names what nothing checks while no agent runs; standard error, which is the container's too, does not.
func TestNoteOfAgent(t *testing.T) {
	p := newPods(t)
	const note = `level=warning msg="gpuslice: container 8f1d6d3c0a5e: gpuslice-agent does not run: limits of memory and compute time hold without it`
	create := func() string {
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, "log"), nil, 0o600))
		_, output := p.create(t, "moby", func(s *rspec.Spec) { s.Annotations = nil })
		require.NotEmpty(t, p.ran, output)
		require.NotContains(t, output, "agent")
		return read(t, filepath.Join(p.dir, "log"))
	}
	require.Contains(t, create(), note)

	lock, err := os.Create(filepath.Join(p.Config.StateDir, "agent.lock"))
	require.NoError(t, err)
	defer lock.Close()
	require.Contains(t, create(), note, "an agent that has ended")
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	require.NotContains(t, create(), "level=warning")
}
