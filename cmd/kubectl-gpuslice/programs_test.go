//go:build plugins

package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	pluginsDir    = flag.String("plugins", "", "build the programs into this directory")
	pluginVersion = flag.String("version", "dev", "their version")
)

const mostBytes = 40e6

// The program is built for each platform, and is small.
func TestPrograms(t *testing.T) {
	dir := *pluginsDir
	if dir == "" {
		dir = t.TempDir()
	}
	for _, platform := range platforms {
		name := "kubectl-gpuslice-" + strings.ReplaceAll(platform, "/", "-")
		if strings.HasPrefix(platform, "windows/") {
			name += ".exe"
		}
		path := filepath.Join(dir, name)
		stamp := "-s -w -X github.com/gpuslice/gpuslice/cmd/internal/version.version=" + *pluginVersion
		out, err := command(platform, "build", "-ldflags", stamp, "-o", path, ".").CombinedOutput()
		require.NoError(t, err, "%s: %s", platform, out)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Less(t, info.Size(), int64(mostBytes), platform)
		t.Logf("%s: %.1f MB", platform, float64(info.Size())/1e6)
	}
}
