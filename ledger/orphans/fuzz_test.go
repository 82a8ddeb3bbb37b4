package orphans

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process names itself: whatever it is called, its start is the kernel's word.
func FuzzStat(f *testing.F) {
	for _, name := range []string{"sh", "a) S 1 (", ") ", "new\nline", ""} {
		f.Add(name, "7 (sh) S 1 2", uint64(4711))
	}
	f.Fuzz(func(t *testing.T, name, garbage string, start uint64) {
		_, _, _ = parseStat([]byte(garbage))
		got, dead, err := parseStat(fmt.Appendf(nil, "7 (%s) S 1%s %d 9 9\n", name, strings.Repeat(" 0", 17), start))
		require.NoError(t, err)
		require.False(t, dead)
		require.Equal(t, start, got)
	})
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
