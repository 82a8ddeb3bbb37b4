package choose

import (
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// However large the numbers are that a node claims.
func TestPartIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Int64(), rapid.Int64Range(1<<40-2, 1<<40+2), rapid.Int64Range(0, 100_000))
		used, total := number.Draw(t, "used"), number.Draw(t, "total")
		want := int64(0)
		if used > 0 && total > 0 {
			x := big.NewInt(min(used, total))
			want = x.Div(x.Mul(x, big.NewInt(scoreUnit)), big.NewInt(total)).Int64()
		}
		require.Equal(t, want, part(used, total))
	})
}
