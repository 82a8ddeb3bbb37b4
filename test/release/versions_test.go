// Package release checks what all parts of a release have in common: the version, and the image's name.
package release

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Each program prints its name and the same version in its first line: the one that was set for the build.
func TestPrograms(t *testing.T) {
	version := ""
	for _, name := range []string{"gpuslice", "gpuslice-agent", "gpuslice-runtime", "gpuslice-scheduler"} {
		path, err := harness.Artefact("bin", name)
		require.NoError(t, err)
		// gpuslice-runtime fails if there is no low-level runtime, after it has printed its version.
		out, _ := exec.CommandContext(t.Context(), path, "--version").Output()
		found := regexp.MustCompile(`^` + name + ` version (v\d+\.\d+\.\d+\S*)\n`).FindStringSubmatch(string(out))
		require.NotNil(t, found, "%s --version: %s", name, out)
		if version == "" {
			version = found[1]
		}
		require.Equal(t, version, found[1], name)
		if name == "gpuslice-scheduler" {
			require.Regexp(t, `\nKubernetes v1\.\d+\.\d+\n$`, string(out))
		}
	}
}

// The archive of `make image` has the name of the image that the chart installs.
func TestImageName(t *testing.T) {
	root, err := harness.Repository()
	require.NoError(t, err)
	var values struct {
		Image struct{ Repository, Tag string }
	}
	var chart struct{ Version, AppVersion string }
	for file, into := range map[string]any{"values.yaml": &values, "Chart.yaml": &chart} {
		text, err := os.ReadFile(filepath.Join(root, "install/charts/gpuslice", file))
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(text, into))
	}
	require.Empty(t, values.Image.Tag)
	require.Equal(t, chart.Version, chart.AppVersion)
	out, err := harness.Run(context.Background(), nil, "make", "--no-print-directory", "-n", "-C", root, "image")
	require.NoError(t, err)
	require.Contains(t, out, " -name "+values.Image.Repository+":"+chart.AppVersion+" ")
	// And the pages.
	for _, page := range []string{"docs/INSTALL.md", "docs/QUICKSTART-KUBERNETES.md"} {
		text, err := os.ReadFile(filepath.Join(root, page))
		require.NoError(t, err)
		require.Contains(t, string(text), "`"+values.Image.Repository+":"+chart.AppVersion+"`", page)
	}
}
