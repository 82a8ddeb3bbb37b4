//go:build hosts

package inside_test

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const labelAttribute = "security.selinux"

// label gives directories, and all that is in them, a type of SELinux.
func label(t *testing.T, kind string, dirs ...string) {
	for _, dir := range dirs {
		require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return unix.Lsetxattr(path, labelAttribute, []byte("system_u:object_r:"+kind+":s0\x00"), 0)
		}))
	}
}

func labelOf(t *testing.T, path string) string {
	text := make([]byte, 256)
	n, err := unix.Lgetxattr(path, labelAttribute, text)
	require.NoError(t, err)
	return strings.TrimRight(string(text[:n]), "\x00")
}
