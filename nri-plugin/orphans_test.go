package nriplugin_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// docker reserves a GPU's whole memory, as the runtime wrapper does, for a container that
// the process makes.
func (f *fixture) docker(id string, creator int) {
	record, err := orphans.NewRecord("/proc", creator)
	require.NoError(f.t, err)
	claim := ledger.Claim{
		ContainerID: id, Owner: ledger.OwnerRuntime, Container: "web",
		Shares: []grant.Share{{UUID: gpuA, MemoryMiB: 81920}},
	}
	_, err = f.config.Ledger.Claim(context.Background(), claim, f.config.GPUs(), record.Write)
	require.NoError(f.t, err)
}

// sleeper starts a process, which is docker's container, and how to kill it.
func sleeper(t testing.TB) (pid int, kill func()) {
	cmd := exec.Command("sleep", "600")
	require.NoError(t, cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill() // it may be killed
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	return cmd.Process.Pid, kill
}

// Where docker's daemon and shims were killed with their containers, a pod has the GPU
// without another container of docker's coming by first.
func TestPodAfterDockersContainersWereKilled(t *testing.T) {
	f := newFixture(t)
	pid, kill := sleeper(t)
	f.docker("docker1", pid)
	pod, ctr := newPod("p", named("main", gpuA, 1000, 10)), newContainer("main")
	_, err := f.runtime.create(pod, ctr)
	require.ErrorContains(t, err, "containers that hold it: 1")
	kill()
	_, err = f.runtime.create(pod, ctr)
	require.NoError(t, err)
	require.NoDirExists(t, f.ledger.Dir("docker1"))
}

// An agent that starts releases the claims of containers that are gone, and no others. It keeps a claim that
// can't be read.
func TestAgentStartsBesideDocker(t *testing.T) {
	f := newFixture(t)
	pid, kill := sleeper(t)
	for _, id := range []string{"there", "unreadable"} {
		record, err := orphans.NewRecord("/proc", pid)
		require.NoError(t, err)
		claim := ledger.Claim{ContainerID: id, Owner: ledger.OwnerRuntime, Container: id, Shares: []grant.Share{{UUID: gpuB, MemoryMiB: 1000}}}
		_, err = f.ledger.Claim(context.Background(), claim, f.config.GPUs(), record.Write)
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(f.ledger.Dir("unreadable"), "grant.json"), []byte("{"), 0o600))
	restart := func() {
		f.stop()
		f.start()
	}
	restart()
	require.DirExists(t, f.ledger.Dir("there"))
	require.DirExists(t, f.ledger.Dir("unreadable"))
	kill()
	restart()
	require.NoDirExists(t, f.ledger.Dir("there"))
	require.NoDirExists(t, f.ledger.Dir("unreadable"))
}
