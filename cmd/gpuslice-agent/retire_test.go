package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// retired is the options of a node on which an agent was, with a container's claim of this owner.
func retired(t *testing.T, owner string) options {
	dir := t.TempDir()
	o := options{StateDir: filepath.Join(dir, "run"), LibraryDir: filepath.Join(dir, "lib"), DevicePluginDir: filepath.Join(dir, "plugins"), KubeletDir: filepath.Join(dir, "kubelet")}
	for _, dir := range []string{o.LibraryDir, o.DevicePluginDir} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	store, err := ledger.Open(o.StateDir)
	require.NoError(t, err)
	const uuid = "GPU-00000000-0000-4000-8000-000000000001"
	_, err = store.Claim(t.Context(), ledger.Claim{ContainerID: "c", Owner: owner, Container: "c", Shares: []grant.Share{{UUID: uuid, MemoryMiB: 1}}},
		map[string]grant.GPU{uuid: {UUID: uuid, MemoryMiB: 10, CorePercent: 100, Replicas: 1}}, func(string) error { return nil })
	require.NoError(t, err)
	require.NoError(t, store.Close())
	for _, file := range []string{
		filepath.Join(o.LibraryDir, "libvgpu-0123456789abcdef.so"), filepath.Join(o.LibraryDir, "ld.so.preload"), filepath.Join(o.LibraryDir, "notes.txt"),
		filepath.Join(o.LibraryDir, ".new-libvgpu-0123456789abcdef.so.123"),
		filepath.Join(o.StateDir, "node.json"), filepath.Join(o.DevicePluginDir, "nvidia.sock"),
	} {
		require.NoError(t, os.WriteFile(file, nil, 0o600))
	}
	socket, err := net.Listen("unix", filepath.Join(o.DevicePluginDir, "gpuslice-nvidia.com_gpu.sock"))
	require.NoError(t, err)
	socket.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, socket.Close())
	return o
}

func left(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestRetireRemovesWhatIsOurs(t *testing.T) {
	o := retired(t, ledger.OwnerNRI)
	require.NoError(t, removeFiles(context.Background(), o, slog.New(slog.DiscardHandler)))
	require.Empty(t, left(t, o.StateDir))
	require.Equal(t, []string{"notes.txt"}, left(t, o.LibraryDir))
	require.Equal(t, []string{"nvidia.sock"}, left(t, o.DevicePluginDir))
	require.NoError(t, removeFiles(context.Background(), o, slog.New(slog.DiscardHandler)), "and again")
}

// Docker's containers have their shares by the same ledger, and go on being held to them.
func TestRetireLeavesTheRuntimeWrappers(t *testing.T) {
	o := retired(t, ledger.OwnerRuntime)
	require.ErrorContains(t, removeFiles(context.Background(), o, slog.New(slog.DiscardHandler)), "gpuslice uninstall")
	require.NotEmpty(t, left(t, o.StateDir))
	require.Len(t, left(t, o.LibraryDir), 4)
}

// A directory of the machine's that was given as --state-dir by mistake is not emptied.
func TestRetireLeavesWhatIsNotOurs(t *testing.T) {
	o := retired(t, ledger.OwnerNRI)
	for _, name := range []string{"containerd", ".cache", "containers-of-others", "gpus.json.lock", ".new-node.json.123", ".new-" + allowedFile + ".4", ".new-others.json.5"} {
		require.NoError(t, os.WriteFile(filepath.Join(o.StateDir, name), nil, 0o600))
	}
	require.NoError(t, removeFiles(context.Background(), o, slog.New(slog.DiscardHandler)))
	require.Equal(t, []string{".cache", ".new-others.json.5", "containerd", "containers-of-others"}, left(t, o.StateDir))
}

// An agent that was killed while it wrote a file leaves an unfinished copy. The next one removes it.
func TestUnfinishedFilesAreRemovedAtTheStart(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".new-node.json.1", ".new-" + allowedFile + ".2", ".new-gpus.json.3"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	unlock, err := prepareStateDir(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	unlock()
	require.Equal(t, []string{".new-gpus.json.3", "agent.lock"}, left(t, dir), "gpuslice-runtime can be writing gpus.json")
}
