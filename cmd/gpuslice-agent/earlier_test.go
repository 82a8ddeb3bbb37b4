package main

import (
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

// The limiter of a container that an earlier release created reads flags, and a correction and a percentage behind them. No
// agent reports the use of the GPU there any more: it keeps to its share, also after a resize.
func TestContainersOfAnEarlierReleaseKeepToTheirShares(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	require.NoError(t, os.CopyFS(dir, os.DirFS("../../testdata/compat/1/ledger")))
	store, err := ledger.Open(dir, ledger.WithRecovery(oci.RecoverClaim))
	require.NoError(t, err)
	defer store.Close()
	file := func(id string) string { return limiter.LimitsPath(store.Dir(id)) }
	type words struct {
		flags               uint32
		correction, elastic uint16
	}
	read := func(id string, record int) words {
		content, err := os.ReadFile(file(id))
		require.NoError(t, err)
		_, err = limiter.ReadLimits(file(id))
		require.NoError(t, err, "the checksum is right")
		b := content[128+128*record+48:]
		return words{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint16(b[6:])}
	}
	held := func() {
		t.Helper()
		require.Equal(t, words{2, 1000, 0}, read("one", 0), "contended, and not blocked")
		require.Equal(t, words{2, 1000, 70}, read("two", 0), "it has no share, and gets what they leave")
		require.Equal(t, words{2, 1000, 0}, read("two", 1))
	}
	require.NoError(t, holdEarlier(context.Background(), store, 1, slog.New(slog.DiscardHandler)))
	held()
	before, err := os.ReadFile(file("one"))
	require.NoError(t, err)
	require.NoError(t, holdEarlier(context.Background(), store, 1, slog.New(slog.DiscardHandler)))
	after, err := os.ReadFile(file("one"))
	require.NoError(t, err)
	require.Equal(t, before, after, "the processes need not read it again")

	require.NoError(t, limiter.UpdateResidue(store.Dir("one"), []uint64{1 << 20}))
	limits, err := limiter.ReadLimits(file("one"))
	require.NoError(t, err)
	limits.Devices[0].CorePercent = 40
	require.NoError(t, limiter.UpdateLimits(store.Dir("one"), limits))
	limits, err = limiter.ReadLimits(file("one"))
	require.NoError(t, err)
	require.Equal(t, uint32(40), limits.Devices[0].CorePercent)
	held()
}
