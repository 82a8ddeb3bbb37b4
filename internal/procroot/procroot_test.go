package procroot

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestStat(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "file"), []byte("outside"), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "a/b/file"), []byte("in"), 0o600))
	for name, target := range map[string]string{
		"absolute": "/a/b", "relative": "a/b", "beyond": strings.Repeat("../", 40) + "a/b",
		"host": outside, "climbs": strings.Repeat("../", 40) + outside, "magic": "/proc/self/root" + outside, "loop": "loop",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(root, name)))
	}
	require.NoError(t, os.Symlink("/a/b/file", filepath.Join(root, "last")))

	for _, name := range []string{"a/b/file", "/a/b/file", "absolute/file", "relative/file", "beyond/file"} {
		st, err := Stat(root, name)
		require.NoError(t, err, name)
		assert.EqualValues(t, len("in"), st.Size, name)
	}
	for name, want := range map[string]error{
		"host/file": fs.ErrNotExist, "climbs/file": fs.ErrNotExist, "magic/file": fs.ErrNotExist, "loop/file": unix.ELOOP, "none": fs.ErrNotExist,
	} {
		_, err := Stat(root, name)
		assert.ErrorIs(t, err, want, name)
	}
	st, err := Stat(root, "last")
	require.NoError(t, err)
	assert.EqualValues(t, unix.S_IFLNK, st.Mode&unix.S_IFMT, "a link is one")
	_, err = Stat(filepath.Join(root, "none"), "file")
	assert.ErrorIs(t, err, fs.ErrNotExist)
	_, err = Stat("/proc/self/root", "proc/self/stat")
	assert.NoError(t, err)
}
