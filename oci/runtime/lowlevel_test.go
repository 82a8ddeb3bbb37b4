package ociruntime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFindLowLevel(t *testing.T) {
	dir := t.TempDir()
	self := write(t, filepath.Join(dir, "bin/gpuslice-runtime"), "", 0o755)
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "bin/us")))
	require.NoError(t, os.Link(self, filepath.Join(dir, "bin/us-too")))
	other := write(t, filepath.Join(dir, "other/gs-test-crun"), "", 0o755)
	write(t, filepath.Join(dir, "bin/gs-test-data"), "", 0o644)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin/gs-test-dir"), 0o755))
	path := filepath.Join(dir, "bin") + "::relative:" + filepath.Join(dir, "other")

	for _, c := range []struct {
		description string
		candidates  []string
		want, err   string
	}{
		{"in PATH", []string{"gs-test-crun"}, other, ""},
		{"the first that is there", []string{"gs-test-none", "/no/such/runc", "gs-test-crun", "us"}, other, ""},
		{"an absolute path", []string{other}, other, ""},
		{"no program", []string{"gs-test-data", "gs-test-dir", "gs-test-crun"}, other, ""},
		{"never ourselves, by whatever name", []string{"us", "us-too", "gpuslice-runtime", self, "gs-test-crun"}, other, ""},
		{"only this program", []string{"us"}, "", "gpuslice-runtime was found"},
		{"none", []string{"gs-test-none", "gs-test-nothing"}, "", "none of gs-test-none, gs-test-nothing is in PATH"},
		{"a relative path", []string{"./runc"}, "", "neither a name nor an absolute path"},
	} {
		t.Run(c.description, func(t *testing.T) {
			got, err := findLowLevel(c.candidates, path, self)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestIsNvidia(t *testing.T) {
	for path, want := range map[string]bool{
		"/usr/bin/nvidia-container-runtime": true, "/usr/bin/nvidia-container-runtime.cdi": true,
		"/usr/bin/runc": false, "/opt/nvidia-container-runtime/runc": false,
	} {
		require.Equal(t, want, isNvidia(path), path)
	}
}

func TestRecursionEnv(t *testing.T) {
	env, err := withRecursionEnv([]string{"A=1"})
	require.NoError(t, err)
	require.Equal(t, []string{"A=1", recursionEnv + "=1"}, env)
	_, err = withRecursionEnv(env)
	require.ErrorIs(t, err, errRecursion)
}

func TestReport(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	problem := errRecursion
	for format, want := range map[string]string{
		"json": `{"level":"error","msg":"gpuslice: ` + problem.Error() + `","time":"2026-01-02T03:04:05Z"}`,
		"text": `time="2026-01-02T03:04:05Z" level=error msg="gpuslice: ` + problem.Error() + `"`,
		"":     `time="2026-01-02T03:04:05Z" level=error msg="gpuslice: ` + problem.Error() + `"`,
	} {
		write(t, log, "an entry of before\n", 0o644)
		var output strings.Builder
		require.NoError(t, report(&output, Call{Log: log, LogFormat: format}, problem, now))
		require.Equal(t, "gpuslice: "+problem.Error()+"\n", output.String())
		require.Equal(t, "an entry of before\n"+want, read(t, log))
	}
	var output strings.Builder
	require.Error(t, report(&output, Call{Log: "/no/such/directory/log"}, problem, now))
	require.NotEmpty(t, output.String(), "it is output all the same")
	require.NoError(t, report(&output, Call{}, problem, now))
}
