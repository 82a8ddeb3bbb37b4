package cores

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A process counts for a container that there is or for none, and no group that it makes
// below its container's own makes it another's.
func FuzzCgroup(f *testing.F) {
	f.Add("0::/kubepods.slice/cri-containerd-aaa.scope\n", "/x/docker-bbb.scope")
	f.Add("4:devices:/docker/bbb\n", "\n0::/bbb")
	f.Add(":::\n::/-:aaa", "")
	known := map[string]string{"aaa": "a", "bbb": "b"}
	f.Fuzz(func(t *testing.T, text, below string) {
		if id := fromCgroup(text, known); id != "" {
			require.Contains(t, known, id)
		}
		require.Equal(t, "aaa", fromCgroup("0::/kubepods/pod1/cri-containerd-aaa.scope/"+below, known))
	})
}
