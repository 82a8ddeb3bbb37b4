package cdihook

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCreateSymlinks(t *testing.T) {
	outside := t.TempDir()
	for _, test := range []struct {
		name   string
		files  map[string]string
		link   string
		at     string // in the root directory, where the link is to be
		target string
	}{
		{"in a directory", map[string]string{"usr/lib/": ""}, "libcuda.so.1::/usr/lib/libcuda.so", "usr/lib/libcuda.so", "libcuda.so.1"},
		{"in a directory that is not there", nil, "libcuda.so.1::/usr/lib/libcuda.so", "usr/lib/libcuda.so", "libcuda.so.1"},
		{"a relative name", nil, "libcuda.so.1::usr/lib/libcuda.so", "usr/lib/libcuda.so", "libcuda.so.1"},
		{"to an absolute target", nil, "/run/driver/x::/usr/lib/x", "usr/lib/x", "/run/driver/x"},
		{"in place of a file", map[string]string{"lib/a.so": "old"}, "a.so.1::/lib/a.so", "lib/a.so", "a.so.1"},
		{"in place of another link", map[string]string{"lib/a.so": "->a.so.0"}, "a.so.1::/lib/a.so", "lib/a.so", "a.so.1"},
		{"in place of a dangling link", map[string]string{"lib/a.so": "->" + outside + "/nothing"}, "a.so.1::/lib/a.so", "lib/a.so", "a.so.1"},
		{"there already", map[string]string{"lib/a.so": "->a.so.1"}, "a.so.1::/lib/a.so", "lib/a.so", "a.so.1"},
		{"below a link of the image that is absolute", map[string]string{"usr/lib/": "", "lib": "->/usr/lib"}, "a.so.1::/lib/a.so", "usr/lib/a.so", "a.so.1"},
		{"below a link out of the root", map[string]string{"lib": "->" + outside, outside + "/": ""}, "a.so.1::/lib/a.so", outside + "/a.so", "a.so.1"},
		{"with dots", nil, "a.so.1::/../../../lib/a.so", "lib/a.so", "a.so.1"},
		{"below a link with dots", map[string]string{"lib": "->../../../../up", "up/": ""}, "a.so.1::/lib/a.so", "up/a.so", "a.so.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := image(t, test.files)
			for range 2 { // a container that restarts has its links already
				status, stderr := call(state(t, root), "create-symlinks", "--link", test.link)
				require.Zero(t, status, stderr)
				target, err := os.Readlink(filepath.Join(root, test.at))
				require.NoError(t, err)
				require.Equal(t, test.target, target)
			}
			requireNoTemporaries(t, root)
		})
	}
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is made outside the root directory")
}

func TestCreateSymlinksWhereADirIs(t *testing.T) {
	root := image(t, map[string]string{"lib/a.so/": ""})
	status, stderr := call(state(t, root), "create-symlinks", "--link", "a.so.1::/lib/a.so")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "/lib/a.so")
	require.DirExists(t, filepath.Join(root, "lib/a.so"))
	requireNoTemporaries(t, root)
}

func TestCreateSymlinksBelowALinkToNothing(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "made")
	root := image(t, map[string]string{"lib": "->" + outside})
	status, stderr := call(state(t, root), "create-symlinks", "--link", "a.so.1::/lib/a.so")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "directory /lib of the container")
	require.NoDirExists(t, outside)
}

func TestChmod(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, nil, 0o600))
	root := image(t, map[string]string{"dev/dri/": "", "dev/link": "->/dev/dri", "dev/out": "->" + outside})
	require.NoError(t, os.Chmod(filepath.Join(root, "dev/dri"), 0o700))

	status, stderr := call(state(t, root), "chmod", "--mode", "755", "--path", "/dev/link,/dev/absent", "--path", "/dev/out")
	require.Zero(t, status, stderr)
	require.Equal(t, fs.FileMode(0o755), mode(t, filepath.Join(root, "dev/dri")))
	require.Equal(t, fs.FileMode(0o600), mode(t, outside), "a link does not lead out of the root directory")
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Mode().Perm()
}

// requireNoTemporaries looks for what was made beside a path and not renamed.
func requireNoTemporaries(t *testing.T, root string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		require.NotRegexp(t, `^\.`, d.Name(), path)
		return err
	}))
}
