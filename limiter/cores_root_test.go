//go:build root

package limiter

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestUpdateCoresRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		states []CoreState
		spoil  func(file []byte)
		want   string
	}{
		"too few":              {[]CoreState{{}}, nil, "does not have 1 GPUs"},
		"correction too large": {[]CoreState{{Correction: 4001}, {}}, nil, "GPU 0: correction 4001"},
		"correction too small": {[]CoreState{{}, {Correction: 249}}, nil, "GPU 1: correction 249"},
		"elastic too large":    {[]CoreState{{ElasticPercent: 101}, {}}, nil, "elastic core percent 101"},
		"dead writer":          {make([]CoreState, 2), func(f []byte) { f[limitsHeaderSize] |= 1 }, "record 0: incomplete record: its writer was killed"},
		"spoilt record":        {make([]CoreState, 2), func(f []byte) { f[limitsHeaderSize+limitsRecordSize+30]++ }, "record 1"},
		"spoilt header":        {make([]CoreState, 2), func(f []byte) { f[limitsOffFlags]++ }, "header"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, path, _ := coresFile(t)
			before, err := os.ReadFile(path)
			require.NoError(t, err)
			if test.spoil != nil {
				test.spoil(before)
				require.NoError(t, os.WriteFile(path, before, 0o644))
			}
			assert.ErrorContains(t, UpdateCores(dir, test.states), test.want)
			after, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, before[:limitsOffGen], after[:limitsOffGen])
		})
	}
	assert.ErrorIs(t, UpdateCores(claimDir(t), nil), os.ErrNotExist)
}
