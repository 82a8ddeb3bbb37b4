package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInstallHelp(t *testing.T) {
	for _, command := range []string{"install", "uninstall"} {
		status, out, stderr := gpuslice(command, "--help")
		assert.Equal(t, exitDone, status)
		assert.Empty(t, stderr)
		assert.Contains(t, out, "Exit status:")
		for line := range strings.Lines(out) {
			assert.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 80, line)
		}
	}
}

func TestInstallBadCalls(t *testing.T) {
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"install"}, exitUsage, "an argument is missing"},
		{[]string{"install", "docker", "--config", "daemon.json"}, exitUsage, `--config: "daemon.json" is not an absolute path`},
		{[]string{"uninstall", "docker", "--runtime-path", ""}, exitUsage, `--runtime-path: "" is not an absolute path`},
		{[]string{"install", "cri-o"}, exitUsage, `unknown engine "cri-o": use docker, containerd or podman`},
		{[]string{"install", "docker", "--root", "/none"}, exitFailed, "the host's root directory"},
	} {
		status, out, stderr := gpuslice(test.args...)
		assert.Equal(t, test.status, status, "%v", test.args)
		assert.Empty(t, out)
		assert.Contains(t, stderr, test.want)
	}
}

// All three engines, below another root, and back.
func TestInstallAndUninstall(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "opt"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "opt/gpuslice-runtime"), nil, 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "var/lib/gpuslice/lib"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "var/lib/gpuslice/lib/libvgpu-0123456789abcdef.so"), nil, 0o755))
	for engine, file := range map[string]string{"docker": "etc/docker/daemon.json", "containerd": "etc/containerd/conf.d/zz-gpuslice.toml", "podman": "etc/containers/containers.conf.d/gpuslice.conf"} {
		args := []string{engine, "--root", root, "--runtime-path", "/opt/gpuslice-runtime", "--containerd-version", "2.4.2"}
		status, out, stderr := gpuslice(append([]string{"install", "--dry-run"}, args...)...)
		assert.Equal(t, exitDone, status, stderr)
		assert.Contains(t, out, "+++ /"+file)
		assert.Contains(t, out, "nothing was changed (--dry-run)")
		assert.NoFileExists(t, filepath.Join(root, file))
		status, _, stderr = gpuslice(append([]string{"install"}, args...)...)
		assert.Equal(t, exitDone, status, stderr)
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		assert.Contains(t, string(text), "/opt/gpuslice-runtime")
		status, _, stderr = gpuslice(append([]string{"uninstall"}, args...)...)
		assert.Equal(t, exitDone, status, stderr)
		assert.NoFileExists(t, filepath.Join(root, file))
	}
}

// Equal output is printed once, and an error does not end the watch.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	generate := func(_ context.Context, out io.Writer) error {
		calls++
		switch calls {
		case 1, 2, 5:
			fmt.Fprintln(out, "wrote")
		case 3, 4:
			return errors.New("no driver")
		default:
			cancel()
		}
		return nil
	}
	var out, errs bytes.Buffer
	require.NoError(t, watch(ctx, time.Millisecond, generate, &out, &errs))
	require.Equal(t, "wrote\nwrote\n", out.String())
	require.Equal(t, "gpuslice: no driver\n", errs.String())
}
