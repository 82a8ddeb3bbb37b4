package upgrade_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/wire"
	"github.com/gpuslice/gpuslice/test/granttest"
	"github.com/gpuslice/gpuslice/test/upgrade"
	"github.com/gpuslice/gpuslice/test/vgpufstest"
)

const (
	first, second = "GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002"
	podUID        = "11111111-1111-4111-8111-111111111111"
	// signer is the seed of the key that signed the grants of testdata/compat.
	signer = "compat"
)

// versions are all that there have been of the formats; this one's are the last.
var versions = []string{"1"}

var gpus = map[string]grant.GPU{
	first:  {UUID: first, MemoryMiB: 143771, CorePercent: 100, Replicas: 10},
	second: {UUID: second, MemoryMiB: 81920, CorePercent: 100, Replicas: 10},
}

// podGrant is the grant of each version.
var podGrant = grant.PodGrant{Node: "node-1", Containers: map[string][]grant.Share{
	"main": {{UUID: first, MemoryMiB: 3000, CorePercent: 30}},
	"side": {{UUID: first, MemoryMiB: 1000}, {UUID: second, MemoryMiB: 2000, CorePercent: 100}},
}}

// claims are the reservations in each version's ledger, by the container.
var claims = map[string][]grant.Share{
	"one":   {{UUID: first, MemoryMiB: 3000, CorePercent: 30}},
	"two":   {{UUID: first, MemoryMiB: 10000}, {UUID: second, MemoryMiB: 10000, CorePercent: 50}},
	"three": {{UUID: second, MemoryMiB: 500, CorePercent: 10}},
}

func golden(version string, elem ...string) string {
	return filepath.Join(append([]string{"..", "..", "testdata", "compat", version}, elem...)...)
}

func text(t *testing.T, path string) string {
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return strings.TrimSuffix(string(data), "\n")
}

// ledgerOf is a copy of a version's ledger, as it lay on a node.
func ledgerOf(t *testing.T, version string) string {
	dir := filepath.Join(t.TempDir(), "ledger")
	require.NoError(t, os.CopyFS(dir, os.DirFS(golden(version, "ledger"))))
	usages, err := filepath.Glob(limiter.UsagePath(filepath.Join(dir, "containers", "*")))
	require.NoError(t, err)
	require.NotEmpty(t, usages)
	fresh := filepath.Join(t.TempDir(), "usage")
	require.NoError(t, limiter.CreateUsage(fresh, []string{first}))
	info, err := os.Stat(fresh)
	require.NoError(t, err)
	for _, usage := range usages {
		require.NoError(t, os.Truncate(usage, info.Size()), "the zeros at its end")
		require.NoError(t, os.Chmod(usage, 0o666))
	}
	return dir
}

// A grant that an earlier scheduler wrote, and signed, is one for this agent.
func TestEarlierGrants(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, []byte(granttest.PublicKeys(signer)), 0o644))
	for _, version := range versions {
		annotation := text(t, golden(version, "grant"))
		got, err := grant.DecodeGrant(annotation)
		require.NoError(t, err, version)
		require.Equal(t, podGrant, *got, version)
		pod := grant.Pod{UID: podUID, Annotations: map[string]string{
			api.AnnotationGrant: annotation, api.AnnotationSignature: text(t, golden(version, "grant-signature")),
		}}
		_, err = grant.FromPod(t.Context(), pod, "main", "node-1", nil, grant.OpenPublicKeys(file, slog.New(slog.DiscardHandler)))
		require.NoError(t, err, version)
	}
}

// This scheduler reads the annotations of an earlier agent's GPUs.
func TestEarlierGPUs(t *testing.T) {
	for _, version := range versions {
		node := &scheduler.Node{Name: "node-1", Annotations: map[string]string{api.AnnotationNodeGPUs: text(t, golden(version, "node-gpus"))}}
		inventory, _, err := wire.DecodeNode(node)
		require.NoError(t, err, version)
		require.Len(t, inventory.GPUs, 2, version)
		require.Equal(t, int64(143771), inventory.GPUs[0].MemoryMiB, version)
		require.NotEmpty(t, inventory.Links, version)
	}
}

// The reservations of an earlier agent count: with the limits and the use of containers that continue.
func TestEarlierLedger(t *testing.T) {
	ctx := context.Background()
	for _, version := range versions {
		dir := ledgerOf(t, version)
		l, err := ledger.Open(dir, ledger.WithRecovery(oci.RecoverClaim))
		require.NoError(t, err, version)
		snapshot, err := l.Snapshot(ctx)
		require.NoError(t, err, version)
		active := map[string][]grant.Share{}
		for _, claim := range snapshot.Claims() {
			active[claim.ContainerID] = claim.Shares
			dir := l.Dir(claim.ContainerID)
			limits, err := limiter.ReadLimits(limiter.LimitsPath(dir))
			require.NoError(t, err, version)
			require.Len(t, limits.Devices, len(claim.Shares), version)
			require.Equal(t, uint64(claim.Shares[0].MemoryMiB)<<20, limits.Devices[0].MemoryLimitBytes, version)
			_, err = limiter.ReadUsage(limiter.UsagePath(dir))
			require.NoError(t, err, version)
		}
		require.Equal(t, claims, active, version)
		// A container with an unknown grant keeps its GPU from being given to others.
		_, err = l.Claim(ctx, ledger.Claim{ContainerID: "new", Owner: ledger.OwnerNRI, Container: "c", Shares: []grant.Share{{UUID: second, MemoryMiB: 1}}},
			gpus, func(string) error { return nil })
		require.ErrorIs(t, err, ledger.ErrBlocked, version)
		require.NoError(t, l.Close())
	}
}

// The limiter of a container that continues writes what this agent shows.
func TestEarlierComputeTime(t *testing.T) {
	for _, version := range versions {
		path := limiter.UsagePath(filepath.Join(ledgerOf(t, version), "containers", "two"))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		// Of the second GPU: what could be used, was charged, was due until, was waited, launches, the last one, refused.
		for i, word := range []uint64{9e9, 5e9, 8e9, 3e9, 70, 6e9, 4} {
			_, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, word), int64(2048+128+8*i))
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
		usage, err := limiter.ReadUsage(path)
		require.NoError(t, err, version)
		require.Equal(t, limiter.CoreUsage{BusyNanoseconds: 5e9, ThrottledNanoseconds: 3e9, Launches: 70, LastLaunchNanoseconds: 6e9}, usage.Devices[1].Cores, version)
		require.Equal(t, uint64(4), usage.Devices[1].RefusedAllocations, version)
	}
}

// A grant that this scheduler writes, an agent of the version before takes: it refuses what it doesn't know.
func TestGrantForTheVersionBefore(t *testing.T) {
	written, err := grant.EncodeGrant(&podGrant)
	require.NoError(t, err)
	got, err := upgrade.ReadGrant1(written)
	require.NoError(t, err)
	require.Equal(t, podGrant.Node, got.Node)
	for name, shares := range podGrant.Containers {
		require.Len(t, got.Containers[name], len(shares))
		for i, share := range shares {
			require.Equal(t, share.MemoryMiB, *got.Containers[name][i].MemoryMiB)
			require.Equal(t, share.CorePercent, *got.Containers[name][i].Cores)
		}
	}
	signature, err := granttest.SigningKey(signer).Sign(podUID, "node-1", text(t, golden("1", "grant")))
	require.NoError(t, err)
	require.Equal(t, text(t, golden("1", "grant-signature")), signature)
}

// What this agent books, the one before reads after a rollback; and the limits that this one writes are, byte for byte,
// what the library of a container follows that was started by the one before.
func TestLedgerForTheVersionBefore(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "ledger")
	vgpufstest.Unmount(t, dir)
	defer unix.Umask(unix.Umask(0o022))
	l, err := ledger.Open(dir)
	require.NoError(t, err)
	for id, shares := range claims {
		claim := ledger.Claim{ContainerID: id, Owner: ledger.OwnerNRI, PodUID: podUID, PodNamespace: "team", PodName: id, Container: "main", Shares: shares}
		if id == "two" {
			claim.CoreCeiling, claim.HighPriority = 80, true
		}
		dir, err := l.Claim(ctx, claim, gpus, func(dir string) error { return oci.Populate(dir, claim, oci.Settings{}) })
		require.NoError(t, err)
		data, err := os.ReadFile(filepath.Join(dir, "grant.json"))
		require.NoError(t, err)
		got, err := upgrade.ReadRecord1(data)
		require.NoError(t, err)
		require.Equal(t, []any{id, podUID, claim.CoreCeiling, claim.HighPriority},
			[]any{got.ContainerID, got.PodUID, got.CoreCeiling, got.HighPriority})
		for i, share := range shares {
			require.Equal(t, share.MemoryMiB, *got.Shares[i].MemoryMiB)
			require.Equal(t, share.CorePercent, *got.Shares[i].Cores)
		}
		// The flag by which processes measure their contexts first: the library before does not know it, and reads the rest.
		limits, err := limiter.ReadLimits(limiter.LimitsPath(dir))
		require.NoError(t, err)
		for i := range limits.Devices {
			require.True(t, limits.Devices[i].MeasureFirst)
			limits.Devices[i].MeasureFirst = false
		}
		require.NoError(t, limiter.WriteLimits(limiter.LimitsPath(dir), limits))
		for _, path := range []func(claimDir string) string{limiter.LimitsPath, limiter.UsagePath} {
			now, err := os.ReadFile(path(dir))
			require.NoError(t, err)
			before, err := os.ReadFile(path(golden("1", "ledger", "containers", id)))
			require.NoError(t, err)
			require.Equal(t, bytes.TrimRight(before, "\x00"), bytes.TrimRight(now, "\x00"), path(id))
		}
	}
	require.NoError(t, l.Close())
}
