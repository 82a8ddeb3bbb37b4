//go:build root

package limiter_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

// reserved is a container with the files of a ledger, and the shares to which its ledger resizes it.
type reserved struct {
	*container
	ledger *ledger.Ledger
	gpus   map[string]grant.GPU
}

func newReserved(t *testing.T, state string, memoryMiB int64, cores int) *reserved {
	t.Helper()
	store, err := ledger.Open(t.TempDir(), ledger.WithRecovery(oci.RecoverClaim))
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	b := &reserved{container: newContainer(t, state, gpu{gpuIDs[0], giB}), ledger: store,
		gpus: map[string]grant.GPU{gpuIDs[0]: {UUID: gpuIDs[0], MemoryMiB: 8192, CorePercent: 100, Replicas: 10}}}
	claim := ledger.Claim{ContainerID: "c1", Owner: ledger.OwnerNRI, Container: "main",
		Shares: []grant.Share{{UUID: gpuIDs[0], MemoryMiB: memoryMiB, CorePercent: cores}}}
	b.dir, err = store.Claim(context.Background(), claim, b.gpus, func(dir string) error {
		return oci.Populate(dir, claim, oci.Settings{CorePolicy: oci.CoreForce})
	})
	require.NoError(t, err)
	return b
}

func (b *reserved) resize(t *testing.T, memoryMiB int64, cores int) error {
	t.Helper()
	_, err := b.ledger.Resize(context.Background(), "c1", []grant.Share{{UUID: gpuIDs[0], MemoryMiB: memoryMiB, CorePercent: cores}}, b.gpus, oci.Resize)
	return err
}

// A container that runs has more with its next call, and below what it has nothing is
// freed and nothing more is given.
func TestResizeOfARunningContainer(t *testing.T) {
	b := newReserved(t, newMachine(t, "H200:context_mib=0"), 1024, 0)
	p := talk(t, b.command(filepath.Join(bin, "probe"), strings.Fields(
		"init ctx 0 alloc 1073741824 alloc 1 line alloc 1073741824 line alloc 1 line alloc 1 line alloc 1")...))
	for _, want := range []string{"init 0", "ctx 0", "alloc 0", "alloc 2"} {
		require.Equal(t, want, p.hear(t))
	}
	require.NoError(t, b.resize(t, 2048, 0))
	p.tell(t, "")
	require.Equal(t, "alloc 0", p.hear(t), "what failed succeeds")

	require.NoError(t, b.resize(t, 512, 0))
	p.tell(t, "")
	require.Equal(t, "alloc 2", p.hear(t), "it has more than it may: nothing is given")
	assert.Equal(t, uint64(2*giB), b.used(t), "and nothing freed")
	_, data := b.peak(t)
	assert.Equal(t, uint64(2*giB), data)

	require.ErrorIs(t, b.resize(t, 9000, 0), grant.ErrOverbooked)
	p.tell(t, "")
	require.Equal(t, "alloc 2", p.hear(t), "a refusal changes nothing")

	require.NoError(t, b.resize(t, 2050, 0)) // a page more
	p.tell(t, "")
	require.Equal(t, "alloc 0", p.hear(t))
}

// Launches that wait for their share see a larger one.
func TestResizeOfComputeTime(t *testing.T) {
	b := newReserved(t, newMachine(t), 1024, 10)
	b.start(t, pace(t), forever, "sync", "300")
	require.Eventually(t, func() bool { return b.cores(t).ThrottledNanoseconds > 0 }, time.Minute, 5*time.Millisecond, "its launches wait")
	require.NoError(t, b.resize(t, 1024, 60))
	limits, err := limiter.ReadLimits(b.limits())
	require.NoError(t, err)
	require.Equal(t, uint32(60), limits.Devices[0].CorePercent)
	holdShares(t, 2*time.Second, &due{c: b.container, share: 60, what: "the larger share"}) // it had 10 %
}
