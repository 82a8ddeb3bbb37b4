//go:build root

package limiter

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestUpdateResidueRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		residue []uint64
		spoil   func(file []byte)
		want    string
	}{
		"too few":       {[]uint64{0}, nil, "does not have 1 GPUs"},
		"dead writer":   {make([]uint64, 2), func(f []byte) { f[limitsHeaderSize] |= 1 }, "record 0: incomplete record: its writer was killed"},
		"spoilt record": {make([]uint64, 2), func(f []byte) { f[limitsHeaderSize+limitsRecordSize+30]++ }, "record 1"},
		"spoilt header": {make([]uint64, 2), func(f []byte) { f[limitsOffFlags]++ }, "header"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, path, _ := residueFile(t)
			before, err := os.ReadFile(path)
			require.NoError(t, err)
			if test.spoil != nil {
				test.spoil(before)
				require.NoError(t, os.WriteFile(path, before, 0o644))
			}
			assert.ErrorContains(t, UpdateResidue(dir, test.residue), test.want)
			after, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, before[:limitsOffGen], after[:limitsOffGen])
		})
	}
	assert.ErrorIs(t, UpdateResidue(claimDir(t), nil), os.ErrNotExist)
}
