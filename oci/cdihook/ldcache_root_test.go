//go:build root

package cdihook

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/harness"
)

// The host's own ldconfig, on an image that has nothing but a library.
func TestHostsLdconfig(t *testing.T) {
	library, err := os.ReadFile("/lib/" + harness.Triplet + "/libc.so.6")
	require.NoError(t, err)
	outside := t.TempDir()

	for _, test := range []struct {
		name  string
		files map[string]string
		in    string
	}{
		{"distroless", nil, "opt/driver"},
		{"an image with a directory that is a link out of the root", map[string]string{"opt/driver": "->" + outside}, outside},
		{"an image with a link as /etc", map[string]string{"etc": "->/private/etc", "private/etc/": ""}, "opt/driver"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := image(t, test.files)
			at := filepath.Join(root, test.in)
			require.NoError(t, os.MkdirAll(at, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(at, "libc-1.so"), library, 0o755))
			for range 2 {
				status, stderr := call(state(t, root), "update-ldcache", "--folder", "/opt/driver")
				require.Zero(t, status, stderr)
			}
			target, err := os.Readlink(filepath.Join(at, "libc.so.6"))
			require.NoError(t, err, "the library's soname is a link")
			require.Equal(t, "libc-1.so", target)
			r, err := openRoot(root)
			require.NoError(t, err)
			defer r.close()
			cache, err := r.read(ldCache)
			require.NoError(t, err)
			require.Contains(t, string(cache), "/opt/driver/libc.so.6")
		})
	}
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is made outside the root directory")
}

func TestReadOnlyRootIsLeftAlone(t *testing.T) {
	root := image(t, map[string]string{"etc/": "", "lib/": ""})
	require.NoError(t, unix.Mount(root, root, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(root, 0)) })
	require.NoError(t, unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for _, args := range [][]string{
		{"create-symlinks", "--link", "a.so.1::/lib/a.so"},
		{"update-ldcache", "--folder", "/opt/driver"},
		{"update-ldcache", "--folder", "/lib"},
		{"chmod", "--mode", "700", "--path", "/lib"},
	} {
		status, stderr := call(state(t, root), args...)
		require.Zero(t, status, stderr)
		require.Contains(t, stderr, "is read-only")
	}
}
