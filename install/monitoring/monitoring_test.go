package monitoring

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write dashboard.json")

// dashboard.json is up to date: `make generate` writes it.
func TestDashboard(t *testing.T) {
	want, err := JSON()
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("dashboard.json", want, 0o644))
		return
	}
	assert.Equal(t, string(want), string(Imported), "run make generate, and look at the diff")
}

// Panels do not overlap, and have unique IDs.
func TestLayout(t *testing.T) {
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range dashboard().Panels {
		assert.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		assert.LessOrEqual(t, p.GridPos.X+p.GridPos.W, gridWidth, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				assert.Empty(t, taken[at], "%s and %s", p.Title, taken[at])
				taken[at] = p.Title
			}
		}
	}
}
