package orphans

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
