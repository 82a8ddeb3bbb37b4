package monitoring

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Panels do not overlap, and have unique IDs.
func TestLayout(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ H, W, X, Y int }
		}
	}
	require.NoError(t, json.Unmarshal(shipped(t, "dashboard.json"), &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range dashboard.Panels {
		assert.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		assert.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				assert.Empty(t, taken[at], "%s and %s", p.Title, taken[at])
				taken[at] = p.Title
			}
		}
	}
}
