//go:build root

package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

// Without dra.enabled the chart's agent has the directories of CDI specs read-only: what an earlier one left there must not
// keep --retire from its end.
func TestRetireWithReadOnlyCDI(t *testing.T) {
	o := retired(t, ledger.OwnerNRI)
	dir := t.TempDir()
	o.CDISpecDirs = []string{dir}
	spec := filepath.Join(dir, api.CDIClaimSpecPrefix+"x.json")
	require.NoError(t, os.WriteFile(spec, nil, 0o600))
	require.NoError(t, syscall.Mount(dir, dir, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	require.NoError(t, syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	var log bytes.Buffer
	require.NoError(t, removeFiles(t.Context(), o, slog.New(slog.NewTextHandler(&log, nil))))
	require.Contains(t, log.String(), spec)
	require.Empty(t, left(t, o.StateDir))
}

// A container that runs goes on taking turns with those of the next agent.
func TestRetireLeavesTheTurnsOfRunningContainers(t *testing.T) {
	o := retired(t, ledger.OwnerNRI)
	store, err := ledger.Open(o.StateDir)
	require.NoError(t, err)
	defer store.Close()
	require.NoError(t, vgpufs.MountTurns(o.StateDir))
	t.Cleanup(func() { require.NoError(t, vgpufs.UnmountTurns(o.StateDir)) })
	const uuid = "GPU-00000000-0000-4000-8000-000000000001"
	gpus := map[string]grant.GPU{uuid: {UUID: uuid, MemoryMiB: 10, CorePercent: 100, Replicas: 10}}
	claims := map[string]ledger.Claim{}
	for _, id := range []string{"running", "ended"} {
		claims[id] = ledger.Claim{
			ContainerID: id, Owner: ledger.OwnerNRI, Container: "c", TurnID: limiter.TurnIDOf(id, ""), Shares: []grant.Share{{UUID: uuid, MemoryMiB: 1, CorePercent: 20}},
		}
		_, err = store.Claim(t.Context(), claims[id], gpus, nil)
		require.NoError(t, err)
	}
	require.NoError(t, store.Release(t.Context(), "ended"))
	turn := limiter.TurnPath(o.StateDir, uuid, claims["running"].TurnID)
	was, err := os.Stat(turn)
	require.NoError(t, err)
	for range 2 { // the pod is restarted
		require.NoError(t, removeFiles(t.Context(), o, slog.New(slog.DiscardHandler)))
		require.Equal(t, []string{vgpufs.TurnsName}, left(t, o.StateDir))
	}
	require.NoFileExists(t, limiter.TurnPath(o.StateDir, uuid, claims["ended"].TurnID))

	next, err := ledger.Open(o.StateDir)
	require.NoError(t, err)
	defer next.Close()
	require.NoError(t, vgpufs.MountTurns(o.StateDir))
	_, err = next.Reconcile(t.Context(), ledger.OwnerNRI, []string{"running"})
	require.NoError(t, err)
	_, err = next.Restore(t.Context(), claims["running"], gpus, nil)
	require.NoError(t, err)
	is, err := os.Stat(turn)
	require.NoError(t, err)
	require.True(t, os.SameFile(was, is))
	table, err := limiter.ReadTable(limiter.TablePath(o.StateDir, uuid))
	require.NoError(t, err)
	require.Len(t, table.Shares, 1)

	require.NoError(t, next.Release(t.Context(), "running"))
	require.NoError(t, removeFiles(t.Context(), o, slog.New(slog.DiscardHandler)))
	require.Empty(t, left(t, o.StateDir))
}
