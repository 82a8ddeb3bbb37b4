package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/native"
)

func testLimits(d native.Driver, root string) *nativeLimits {
	return &nativeLimits{
		driver: d, root: func() (string, error) { return root, nil }, retry: time.Minute, now: time.Now,
		log: slog.New(slog.DiscardHandler), err: native.ErrNotProbed,
	}
}

// The driver is probed once; a failure is looked at again later, and another driver at once.
func TestProbeOncePerDriver(t *testing.T) {
	var none *nativeLimits
	none.look(t.Context())
	require.NoError(t, none.reason())
	assert.Empty(t, none.enforcement())
	assert.Empty(t, none.ofResourceClaims())
	assert.Equal(t, noderegister.Condition{Type: "GPUMemoryLimitedByDriver"}, none.condition(false), "it is removed")
	n := testLimits(keptLimits{}, t.TempDir())
	of, probes, failure := "", 0, error(nil)
	root := n.root
	n.of = func() (string, []string) { return of, []string{"GPU-a"} }
	n.root = func() (string, error) {
		probes++
		dir, _ := root()
		return dir, failure
	}
	now := time.Now()
	n.now = func() time.Time { return now }
	n.look(t.Context())
	require.ErrorIs(t, n.reason(), native.ErrNotProbed)
	status := func(want string) noderegister.Condition {
		c := n.condition(false)
		assert.Equal(t, want, c.Status+" "+c.Reason)
		return c
	}
	status("Unknown NotProbed")
	n.mode = oci.MemoryAuto
	changes := 0
	n.changed = func() { changes++ }
	assert.Equal(t, "limiter", n.enforcement())
	of = "615"
	for range 3 {
		n.look(t.Context())
		require.NoError(t, n.reason())
	}
	assert.Equal(t, 1, probes)
	assert.Equal(t, "native+limiter", n.enforcement())
	assert.Equal(t, "limiter", n.ofResourceClaims())
	assert.Equal(t, "ResourceClaims", n.condition(true).Reason)
	assert.Equal(t, 1, changes)
	c := status("True Probed")
	assert.Equal(t, now, c.At)
	assert.Contains(t, c.Message, "native+limiter")
	of, failure = "580", errors.New("no groups")
	for range 3 {
		n.look(t.Context())
		require.ErrorContains(t, n.reason(), "no groups")
	}
	assert.Equal(t, 2, probes)
	c = status("False ProbeFailed")
	assert.Contains(t, c.Message, "no groups")
	now = now.Add(time.Minute)
	n.look(t.Context())
	assert.Equal(t, 3, probes)
	assert.Equal(t, c, n.condition(false), "the same result")
	now, failure = now.Add(time.Minute), nil
	n.look(t.Context())
	require.NoError(t, n.reason())
}

// A limit that differs from the ledger is set again; a resize sets it, and refuses less than what is used.
func TestNativeLimitsFollowTheLedger(t *testing.T) {
	const gpu = "GPU-00000001-5151-4000-8000-000000000001"
	state, group := t.TempDir(), t.TempDir()
	store, err := ledger.Open(state)
	require.NoError(t, err)
	defer store.Close()
	capacity := map[string]grant.GPU{gpu: {MemoryMiB: 100, CorePercent: 100, Replicas: 10}}
	claim := ledger.Claim{ContainerID: "c1", Owner: ledger.OwnerNRI, Container: "main", Mode: string(oci.EnforceNative), Shares: []grant.Share{{UUID: gpu, MemoryMiB: 8}}}
	dir, err := store.Claim(t.Context(), claim, capacity, func(string) error { return nil })
	require.NoError(t, err)
	d := keptLimits{}
	n := testLimits(d, group)

	require.NoError(t, n.compare(t.Context(), store))
	assert.Empty(t, d, "before the hook")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "native.json"), []byte(`{"cgroup":"`+group+`"}`), 0o600))
	for _, forged := range []uint64{1, 100 << 30} {
		d[gpu] = forged
		require.NoError(t, n.compare(t.Context(), store))
		assert.Equal(t, uint64(8<<20), d[gpu])
	}
	delete(d, gpu)
	require.NoError(t, n.compare(t.Context(), store))
	assert.Equal(t, uint64(8<<20), d[gpu], "removed")

	_, err = store.Resize(t.Context(), "c1", []grant.Share{{UUID: gpu, MemoryMiB: 20}}, capacity, n.resize)
	require.NoError(t, err)
	assert.Equal(t, uint64(20<<20), d[gpu])
	used := usedLimits{d, 15 << 20}
	n.driver = used
	_, err = store.Resize(t.Context(), "c1", []grant.Share{{UUID: gpu, MemoryMiB: 10}}, capacity, n.resize)
	require.ErrorContains(t, err, "free memory first")
	assert.Equal(t, uint64(20<<20), d[gpu])

	var off *nativeLimits
	require.ErrorContains(t, off.resize(dir, claim), "restart the container")
	claim.Mode = string(oci.EnforceBoth)
	require.NoError(t, off.resize(dir, claim))
	require.NoError(t, os.Remove(group))
	d[gpu] = 1
	require.NoError(t, n.compare(t.Context(), store))
	assert.Equal(t, uint64(1), d[gpu], "the group is gone")
}

// The residue and the audit have the driver's count of the control groups that it limits.
func TestMemoryOfControlGroups(t *testing.T) {
	const gpu = "GPU-00000001-5151-4000-8000-000000000001"
	group := t.TempDir()
	store, err := ledger.Open(t.TempDir())
	require.NoError(t, err)
	defer store.Close()
	n := testLimits(usedLimits{keptLimits{gpu: 8 << 20}, 5 << 20}, group)
	for id, mode := range map[string]oci.Enforcement{"a": "native+preload", "b": oci.EnforcePreload, "c": oci.EnforceNative, "d": oci.EnforceNative} {
		dir, err := store.Claim(t.Context(), ledger.Claim{
			ContainerID: id, Owner: ledger.OwnerNRI, Container: id, Mode: string(mode), Shares: []grant.Share{{UUID: gpu, MemoryMiB: 8}},
		}, map[string]grant.GPU{gpu: {MemoryMiB: 100, CorePercent: 100, Replicas: 10}}, func(string) error { return nil })
		require.NoError(t, err)
		if id != "d" { // its hook has not run
			require.NoError(t, os.WriteFile(filepath.Join(dir, "native.json"), []byte(`{"cgroup":"`+group+`"}`), 0o600))
		}
	}
	counted := func() map[string]map[string]uint64 {
		all := map[string]map[string]uint64{}
		claims, err := auditedClaims(t.Context(), store, n)
		require.NoError(t, err)
		for _, c := range claims {
			all[c.ID] = c.Counted
		}
		snapshot, err := store.Snapshot(t.Context())
		require.NoError(t, err)
		for _, c := range coreContainers(snapshot, store.Dir) {
			of, err := n.counted(t.Context(), c.Dir, c.Limited)
			require.NoError(t, err)
			require.Equal(t, all[c.ID], of, c.ID)
		}
		return all
	}
	five := map[string]uint64{gpu: 5 << 20}
	assert.Equal(t, map[string]map[string]uint64{"a": five, "b": nil, "c": five, "d": nil}, counted())
	require.NoError(t, os.Remove(group))
	assert.Equal(t, map[string]map[string]uint64{"a": nil, "b": nil, "c": nil, "d": nil}, counted(), "the group is gone")
	n = nil
	assert.Len(t, counted(), 4)
}

// The audit knows a container without the limiter by the operator's permission from one that the driver limits.
func TestAuditedClaimsByEnforcement(t *testing.T) {
	store, err := ledger.Open(t.TempDir())
	require.NoError(t, err)
	defer store.Close()
	for id, mode := range map[string]oci.Enforcement{"a": oci.EnforceNone, "b": oci.EnforceNative, "c": "native+preload", "d": oci.EnforcePreload} {
		_, err = store.Claim(t.Context(), ledger.Claim{
			ContainerID: id, Owner: ledger.OwnerRuntime, Container: id, Mode: string(mode), Shares: []grant.Share{{UUID: "GPU-00000001-5151-4000-8000-000000000001", MemoryMiB: 8}},
		}, map[string]grant.GPU{"GPU-00000001-5151-4000-8000-000000000001": {MemoryMiB: 100, CorePercent: 100, Replicas: 10}}, func(string) error { return nil })
		require.NoError(t, err)
	}
	claims, err := auditedClaims(t.Context(), store, nil)
	require.NoError(t, err)
	require.Len(t, claims, 4)
	for _, c := range claims {
		assert.Equal(t, c.ID == "a", c.Uncontrolled, c.ID)
		assert.Equal(t, c.ID == "b", c.Native, c.ID)
	}
}
