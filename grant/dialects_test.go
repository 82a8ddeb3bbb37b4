package grant

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
)

// TestDialects: what marks a pod as a scheduler's can be written by schedulers only.
func TestDialects(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range Dialects {
		for _, key := range d.keys() {
			assert.True(t, api.IsOwned(key), "%s is in api.Owned", key)
			assert.False(t, seen[key], "%s is in one dialect", key)
			seen[key] = true
			assert.True(t, Pod{Annotations: map[string]string{key: "?"}}.Scheduled(), key)
		}
	}
	assert.False(t, Pod{Annotations: map[string]string{api.AnnotationCoreCeiling: "50"}}.Scheduled())
}

// Validate checks what decoding guarantees.
func (g *Grant) Validate() error {
	if g.Container == "" {
		return Errorf(ErrMalformed, "grant without a container name")
	}
	if g.Position != nil && (*g.Position < 0 || *g.Position >= MaxContainers) {
		return Errorf(ErrMalformed, "position %d: must be from 0 to %d", *g.Position, MaxContainers-1)
	}
	return ValidateShares(g.Shares)
}

// Decoded shares are valid, and encode to the same value.
func FuzzDecodeShares(f *testing.F) {
	f.Add(`[{"uuid":"GPU-0b5a4b1e-9cd6-4d2c-8f57-0d1f6e3c2a10","memoryMiB":1000,"cores":20}]`)
	f.Add(`[{"uuid":"GPU-0b5a4b1e-9cd6-4d2c-8f57-0d1f6e3c2a10","memoryMiB":1000}]`)
	f.Add(`[]`)
	f.Add(`{}`)
	f.Fuzz(func(t *testing.T, value string) {
		shares, err := DecodeShares(value)
		if err != nil {
			require.Nil(t, shares)
			return
		}
		require.NoError(t, ValidateShares(shares))
		again, err := EncodeShares(shares)
		require.NoError(t, err)
		got, err := DecodeShares(again)
		require.NoError(t, err)
		require.Equal(t, shares, got)
	})
}
