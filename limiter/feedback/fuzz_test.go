package feedback

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A process belongs to a container that exists or to none. No group below the group of its
// container changes that.
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
