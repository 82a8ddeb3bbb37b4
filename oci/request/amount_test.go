package request

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

func TestParseCores(t *testing.T) {
	for text, want := range map[string]Cores{"1": 1, "30": 30, "30%": 30, "100": 100} {
		got, err := ParseCores(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "0", "101", "-1", "+5", "030", "1.5", "30%%", "%", "x", "99999999999999999999", "0x10", " 5"} {
		_, err := ParseCores(text)
		require.ErrorIs(t, err, grant.ErrMalformed, text)
		assert.ErrorContains(t, err, quote.Short(text)+" is not compute time in percent")
	}
}
