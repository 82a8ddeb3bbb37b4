//go:build root

package docker_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// importRoot makes an image of a root file system.
func importRoot(t testing.TB, d *harness.Dockerd, name string, root harness.Root) {
	t.Helper()
	dir, archive := t.TempDir(), filepath.Join(t.TempDir(), "root.tar")
	require.NoError(t, root.Write(dir))
	out, err := exec.Command("tar", "-C", dir, "-cf", archive, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, err = d.Docker(context.Background(), "import", archive, name)
	require.NoError(t, err)
}

// Images that a preload doesn't reach, or not easily, by `docker run` in each limiter mode: they get their
// share and no more, or no GPU, or a message that states what to do.
func TestImagesInDocker(t *testing.T) {
	m := newMachine(t, "H200")
	d := newDocker(t, m, harness.DockerdOptions{}).Dockerd
	ctx := context.Background()

	gcompat, err := harness.MuslRoot(t.TempDir(), true)
	require.NoError(t, err)
	musl, err := harness.MuslRoot(t.TempDir(), false)
	require.NoError(t, err)
	distroless, err := harness.GlibcRoot()
	require.NoError(t, err)
	distroless.Dirs, distroless.Links, distroless.Texts = nil, nil, nil
	delete(distroless.Files, "bin/busybox")
	own, err := harness.GlibcRoot()
	require.NoError(t, err)
	library := filepath.Join(t.TempDir(), "own.so")
	source := library + ".c"
	require.NoError(t, os.WriteFile(source, []byte("#include <stdio.h>\n__attribute__((constructor)) static void loaded(void) { puts(\"own=loaded\"); }\n"), 0o600))
	out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	own.Files["opt/own.so"], own.Texts["etc/ld.so.preload"] = library, "/opt/own.so\n"

	const (
		shares  = "2097152000" // of 2000 MiB
		noGPU   = "no GPU"
		refused = "refused"
	)
	for _, image := range []struct {
		name                   string
		root                   harness.Root
		options                []string
		own                    string
		auto, preload, library string
	}{
		{"musl-gcompat", gcompat, []string{"-e", harness.GcompatEnv}, "", shares, refused, shares},
		{"musl", musl, nil, "", noGPU, refused, noGPU},
		{"distroless", distroless, []string{"--read-only"}, "", shares, shares, shares},
		{"own-preload", own, nil, "loaded", shares, shares, shares},
	} {
		t.Run(image.name, func(t *testing.T) {
			name := "gpuslice.test/" + image.name
			importRoot(t, d, name, image.root)
			for mode, want := range map[string]string{"auto": image.auto, "preload": image.preload, "library": image.library} {
				require.NoError(t, m.WriteRuntimeConfig("limiterMode: "+mode+"\n"))
				args := append([]string{"run", "--rm", "--network", "none", "--runtime", "gpuslice", "-e", "GPUSLICE_MEMORY=2000MiB"}, image.options...)
				out, err := d.Docker(ctx, append(args, name, harness.WorkloadDir+"/meminfo")...)
				switch want {
				case refused:
					require.ErrorContains(t, err, "exit status 125", mode)
					require.ErrorContains(t, err, "/etc/ld.so.preload", mode)
					require.ErrorContains(t, err, "limiter mode to auto", mode)
				case noGPU:
					require.ErrorContains(t, err, "exit status 4", "%s: %s", mode, out)
				default:
					require.NoError(t, err, mode)
					shown := harness.KeyValues(out)
					assert.Equal(t, want, shown["device.0.total_bytes"], mode)
					assert.Equal(t, want, shown["nvml.0.total_bytes"], mode)
					assert.Equal(t, image.own, shown["own"], mode)

					out, err = d.Docker(ctx, append(args, name, harness.WorkloadDir+"/alloc", "--chunk-mib=1")...)
					require.NoError(t, err, mode)
					taken, err := strconv.ParseInt(harness.KeyValues(out)["allocated_bytes"], 10, 64)
					require.NoError(t, err)
					assert.LessOrEqual(t, taken, int64(2000<<20), mode)
					assert.Greater(t, taken, int64(1400<<20), "%s: a context takes 520 MiB", mode)
				}
			}
		})
	}
	s, err := m.Status(ctx)
	require.NoError(t, err)
	require.Empty(t, s.Containers, "nothing stays reserved")
}
