package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/docs/pages"
	"github.com/gpuslice/gpuslice/test/harness"
)

// What docs/INSTALL.md does to the unit of the state directory's tmpfs leaves its options, and has it mounted with the label
// that containers may write.
func TestSELinuxMount(t *testing.T) {
	const there = "/etc/systemd/system/run-gpuslice.mount"
	before, err := os.ReadFile(filepath.Join(root, "install/run-gpuslice.mount"))
	require.NoError(t, err)
	unit := filepath.Join(t.TempDir(), "run-gpuslice.mount")
	require.NoError(t, os.WriteFile(unit, before, 0o600))

	ran := 0
	for _, c := range pages.Commands("docs/INSTALL.md", documents(t)["docs/INSTALL.md"]) {
		if strings.HasPrefix(c.Text, "sed -i ") && strings.HasSuffix(c.Text, there) {
			_, err := harness.Run(t.Context(), nil, "sh", "-c", strings.ReplaceAll(c.Text, there, unit))
			require.NoError(t, err)
			ran++
		}
	}
	require.Equal(t, 1, ran, "the command is not there")

	after, err := os.ReadFile(unit)
	require.NoError(t, err)
	options := func(text []byte) (found []string) {
		for line := range strings.Lines(string(text)) {
			if value, is := strings.CutPrefix(strings.TrimSpace(line), "Options="); is {
				found = append(found, value)
			}
		}
		require.Len(t, found, 1)
		return found
	}
	require.Equal(t, options(before)[0]+",context=system_u:object_r:container_file_t:s0", options(after)[0])
	require.Equal(t, strings.Replace(string(before), options(before)[0], options(after)[0], 1), string(after), "nothing else of it")
}
