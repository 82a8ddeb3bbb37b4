package webhook

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// With any list of required plugins in a pod, afterwards our plugin is in it once, and all others stay.
func FuzzRequired(f *testing.F) {
	f.Add("")
	f.Add("[a, b]")
	f.Add("[gpuslice]")
	f.Add("[10-gpuslice]")
	f.Add("- &a x\n- *a\n- *a")
	f.Add("null")
	f.Add("a: {<<: *b}")
	f.Fuzz(func(t *testing.T, text string) {
		const plugin = "gpuslice"
		with, err := addPlugin("key", text, plugin)
		if err != nil {
			return
		}
		var before, after []string
		require.NoError(t, yaml.Unmarshal([]byte(text), &before))
		if with == "" {
			require.True(t, slices.ContainsFunc(before, func(entry string) bool { return isPlugin(entry, plugin) }))
			return
		}
		require.NoError(t, yaml.Unmarshal([]byte(with), &after))
		require.Equal(t, append(before, plugin), after)
		again, err := addPlugin("key", with, plugin)
		if len(with) <= maxRequired {
			require.NoError(t, err)
			require.Empty(t, again)
		}
	})
}
