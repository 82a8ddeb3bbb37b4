package grant_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

func TestCordon(t *testing.T) {
	dir := t.TempDir()
	ledger, other := openLedger(t, dir), openLedger(t, dir)
	first := claimOf("a1", share(1000, 10))
	_, err := other.Claim(background, first, testCards(), nil)
	require.NoError(t, err)

	require.NoError(t, ledger.Cordon(background, cardA, cardB))
	require.NoError(t, ledger.Cordon(background, cardA)) // twice is once
	cordoned, err := grant.Cordoned(dir)
	require.NoError(t, err)
	assert.Equal(t, []string{cardA, cardB}, cordoned)

	_, err = other.Claim(background, claimOf("c1", share(1000, 10)), testCards(), nil)
	require.ErrorIs(t, err, grant.ErrCordoned)
	assert.ErrorContains(t, err, "gpuslice uncordon "+cardA)
	_, err = other.Claim(background, claimOf("c2", grant.Share{UUID: cardC, MemoryMiB: 1}), testCards(), nil)
	require.NoError(t, err, "other cards are given out")
	_, err = other.Claim(background, first, testCards(), nil)
	require.NoError(t, err, "what is booked stays")
	again := first
	again.ContainerID = "a2"
	require.NoError(t, other.Release(background, "a1"))
	_, err = other.Claim(background, again, testCards(), nil)
	require.NoError(t, err, "a container that restarts in its pod has been there before")

	require.NoError(t, ledger.Uncordon(background, cardA, cardX))
	_, err = other.Claim(background, claimOf("c1", share(1000, 10)), testCards(), nil)
	require.NoError(t, err)
	require.NoError(t, ledger.Uncordon(background, cardB))
	assert.NoFileExists(t, filepath.Join(dir, "cordoned"))
}

func TestCordonsThatCanNotBeRead(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	require.ErrorIs(t, ledger.Cordon(background, "GPU-0"), grant.ErrMalformed)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cordoned"), []byte("card 0\n"), 0o644))
	_, err := ledger.Claim(background, claimOf("c1", share(1000, 10)), testCards(), nil)
	require.ErrorContains(t, err, "mend or remove the file", "nobody knows which cards are meant")
}
