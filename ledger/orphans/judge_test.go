package orphans

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
)

// device is a directory's, as mountinfo has it.
func device(t testing.TB, dir string) string {
	var st unix.Stat_t
	require.NoError(t, unix.Stat(limiter.FilesDir(dir), &st))
	return fmt.Sprintf("%d:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)))
}

func TestIdentify(t *testing.T) {
	self, err := Procfs("/proc").Identify(os.Getpid())
	require.NoError(t, err)
	require.True(t, Procfs("/proc").Lives(self))
	self.Start++
	require.False(t, Procfs("/proc").Lives(self))
	_, err = Procfs("/proc").Identify(0)
	require.Error(t, err)
}

// A mount is found among mounts with names that a tenant chooses: the kernel writes a space in them as \040
// and a line's end as \012.
func FuzzMountinfo(f *testing.F) {
	f.Add("", "/x")
	f.Add("36 35 98:1 /containers/a/ /a rw", "/a b\n")
	f.Fuzz(func(t *testing.T, other, at string) {
		at = strings.NewReplacer(" ", `\040`, "\n", `\012`).Replace(at)
		ours := "36 35 98:1 /usage " + at + " rw - tmpfs t rw\n"
		require.True(t, mount{device: "98:1", source: "/usage"}.in(other+"\n"+ours))
		require.False(t, mount{device: "98:1", source: "/"}.in(ours))
		require.False(t, mount{device: "98:1", source: "/usage"}.in("36 35 98:2 / "+at+" rw\n"), "the tenant chooses the mount point")
	})
}
