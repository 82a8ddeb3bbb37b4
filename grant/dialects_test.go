package grant

import (
	"testing"

	"github.com/stretchr/testify/assert"

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
