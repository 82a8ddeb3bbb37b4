//go:build root

package ociruntime

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// Creation and removal killed at any moment, ours and runc's: a container that is there
// has its claim, and once everything was removed nothing is left.
func TestKilledAnywhere(t *testing.T) {
	m := newMachine(t, "")
	request := []string{"GPUSLICE_MEMORY=8GiB", "GPUSLICE_DEVICES=device=0"}
	for after := time.Duration(0); after < 80*time.Millisecond; after += 4 * time.Millisecond {
		m.kill(after, "create", "-b", m.bundle("web", request), "web")
		// Another creation sweeps what is gone, and must not take what is there.
		out, err := m.create("other", request...)
		require.NoError(t, err, out)
		m.requireClaims()
		m.kill(after, "delete", "--force", "web")
		m.requireClaims()
		m.remove("web")
		m.remove("other")
		ids, _ := m.claimed()
		require.Empty(t, ids, "killed after %v", after)
	}
}

// kill runs the wrapper and kills it, or what it has become, after some time.
func (m *machine) kill(after time.Duration, args ...string) {
	m.Helper()
	cmd := m.command(nil, args...)
	require.NoError(m, cmd.Start())
	time.Sleep(after)
	_ = cmd.Process.Kill() // it may be done
	_ = cmd.Wait()
}

// requireClaims requires a claim for each container with a live init process.
func (m *machine) requireClaims() {
	m.Helper()
	ids, usage := m.claimed()
	states, err := os.ReadDir(m.path("root"))
	require.NoError(m, err)
	for _, s := range states {
		if init, known := orphans.InitOf(filepath.Join(m.path("root"), s.Name())); known && orphans.Procfs("/proc").Lives(init) {
			require.Contains(m, ids, s.Name())
		}
	}
	require.Equal(m, int64(8192*len(ids)), usage[h200].MemoryMiB)
}
