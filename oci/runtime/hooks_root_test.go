//go:build root

package ociruntime

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/ocitest"
)

// podman's precreate reserves a share, as create does.
func TestPrecreate(t *testing.T) {
	b := newBench(t)
	bundle := b.bundle(t, "podman-4")
	config := read(t, filepath.Join(bundle, configName))
	out, output, status := b.hook(config, "precreate")
	require.Zero(t, status, output)
	bad, err := ocitest.CheckConfig([]byte(out))
	require.NoError(t, err)
	require.Empty(t, bad)
	claims := b.claims(t)
	require.Len(t, claims, 1)
	require.Equal(t, id, claims[0].ContainerID, "by its cgroup's name")
	require.Equal(t, int64(4096), claims[0].Shares[0].MemoryMiB)

	var spec rspec.Spec
	require.NoError(t, json.Unmarshal([]byte(out), &spec))
	require.Contains(t, spec.Process.Env, "CUDA_DEVICE_MEMORY_LIMIT_0=4096m")
	require.Len(t, spec.Hooks.Poststop, 1)

	// podman writes it, and calls the other two.
	userdata := "/run/containers/storage/overlay-containers/" + id + "/userdata"
	write(t, filepath.Join(bundle, configName), out, 0o600)
	_, output, status = b.hook(state(t, bundle), "createRuntime")
	require.Zero(t, status, output)
	_, output, status = b.hook(state(t, userdata), spec.Hooks.Poststop[0].Args[2:]...)
	require.Zero(t, status, output)
	require.Empty(t, b.claims(t))
}

// The poststop hook of hooks.d can run after the next start of the container has its claim.
func TestPoststopOfAnEarlierRun(t *testing.T) {
	b := newBench(t)
	bundle := b.bundle(t, "podman-4")
	_, output, status := b.hook(read(t, filepath.Join(bundle, configName)), "precreate")
	require.Zero(t, status, output)
	userdata := "/run/containers/storage/overlay-containers/" + id + "/userdata"
	for _, args := range [][]string{{"poststop"}, {"poststop", "--claim=ANOTHER"}} {
		_, output, status = b.hook(state(t, userdata), args...)
		require.Zero(t, status, output)
		require.Len(t, b.claims(t), 1, args)
	}
}

// podman does not report a creation that failed before the low-level runtime was called, and lives
// on as a service.
func TestPrecreateAfterAFailedCreation(t *testing.T) {
	b := newBench(t)
	config := read(t, filepath.Join(b.bundle(t, "podman-4"), configName))
	for range 2 {
		out, output, status := b.hook(config, "precreate")
		require.Zero(t, status, output)
		require.Contains(t, out, "CUDA_DEVICE_MEMORY_LIMIT_0=4096m")
		require.Len(t, b.claims(t), 1)
	}
	first, err := b.claimOf(id)
	require.NoError(t, err)
	require.NotZero(t, first.CreatorUntil, "podman's word is bounded")

	// Its mounts are there: it runs.
	usage, err := os.Open(limiter.UsagePath(b.ledger.Dir(id)))
	require.NoError(t, err)
	defer usage.Close()
	target := write(t, filepath.Join(b.dir, "target"), "", 0o600)
	require.NoError(t, unix.Mount(usage.Name(), target, "", unix.MS_BIND, ""))
	defer func() { require.NoError(t, unix.Unmount(target, unix.MNT_DETACH)) }()
	out, _, _ := b.hook(config, "precreate")
	output, _ := b.refusal(t, out)
	require.Contains(t, output, "already has a GPU share")
	now, err := b.claimOf(id)
	require.NoError(t, err)
	require.Equal(t, first.Nonce, now.Nonce)
}

// With hooks.d and the runtime, a share is reserved once. The spec is not sufficient as a proof.
func TestCreateAfterPrecreate(t *testing.T) {
	b := newBench(t)
	bundle := b.bundle(t, "podman-4")
	path := filepath.Join(bundle, configName)
	config, output, status := b.hook(read(t, path), "precreate")
	require.Zero(t, status, output)
	write(t, path, config, 0o600)
	decoded, err := decodeBundle([]byte(config))
	require.NoError(t, err)
	o := &creation{call: Call{Command: "create", ID: id, Bundle: bundle}, lowLevel: "/usr/bin/runc", creator: os.Getpid()}
	_, err = b.admit(context.Background(), o, decoded.Spec)
	require.NoError(t, err)
	require.Len(t, b.claims(t), 1)

	claim, err := b.claimOf(id)
	require.NoError(t, err)
	claim.Creator.Start++ // podman has ended
	require.NoError(t, claim.Write(filepath.Join(b.Config.StateDir, "containers", id)))
	require.False(t, b.precreated(o, oci.ContainerOf(id, decoded.Spec)))
}
