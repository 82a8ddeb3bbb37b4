//go:build root

package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// project is the address of the repository; files of it have the prefix inProject.
const project = "https://github.com/gpuslice/gpuslice"

var inProject = regexp.MustCompile(`https://(?:github\.com/gpuslice/gpuslice/blob|raw\.githubusercontent\.com/gpuslice/gpuslice)/main/([^\s)]+)`)

// Chart repositories show an icon, the sources, the maintainers and the licence. helm recommends nothing more.
func TestMetadata(t *testing.T) {
	out, errs, err := helm(t, "lint", "--strict", "--kube-version", "1.36.3", chartDir)
	require.NoError(t, err, "%s%s", out, errs)
	require.NotContains(t, out, "[INFO]")

	data, err := os.ReadFile(filepath.Join(chartDir, "Chart.yaml"))
	require.NoError(t, err)
	var chart struct {
		Home, Icon  string
		Sources     []string
		Maintainers []struct{ Name, URL string }
		Annotations map[string]string
	}
	require.NoError(t, yaml.Unmarshal(data, &chart))
	require.Equal(t, project, chart.Home)
	require.Equal(t, []string{project}, chart.Sources)
	require.Len(t, chart.Maintainers, 1)
	require.Equal(t, project, chart.Maintainers[0].URL)
	licence, err := os.ReadFile("../../LICENSE")
	require.NoError(t, err)
	require.Equal(t, "Apache-2.0", chart.Annotations["artifacthub.io/license"])
	require.Contains(t, string(licence), "Apache License")
	require.Contains(t, string(licence), "Version 2.0")
	var links []struct{ Name, URL string }
	require.NoError(t, yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/links"]), &links))
	require.Len(t, links, 3)

	// `helm show readme` prints it: it has no relative links, names all files of values, and only values that there are.
	readme, errs, err := helm(t, "show", "readme", chartDir)
	require.NoError(t, err, errs)
	require.NotRegexp(t, `\]\((?:[^h]|h[^t])`, readme)
	for _, file := range clusters(t) {
		require.Contains(t, readme, "`"+filepath.Base(file)+"`")
	}
	for _, set := range regexp.MustCompile(`--set (\S+)`).FindAllStringSubmatch(readme, -1) {
		key, value, found := strings.Cut(set[1], "=")
		require.True(t, found)
		require.NotEqual(t, render(t, "gpus"), render(t, "gpus", key+"="+value))
	}

	// Its links to this repository name files that exist.
	files := inProject.FindAllStringSubmatch(string(data)+readme, -1)
	require.Len(t, files, 7)
	for _, file := range files {
		require.FileExists(t, filepath.Join("../..", file[1]))
	}
}
