package feedback

import (
	"fmt"
	"testing"
	"testing/fstest"

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

// A tenant chooses the names of its processes. No name moves the other fields of the line.
func FuzzStat(f *testing.F) {
	f.Add([]byte("python3"), uint64(12345), true)
	f.Add([]byte(") Z 1 1 1 1"), uint64(1), false)
	f.Add([]byte("a\nb) S ("), uint64(0), true)
	f.Fuzz(func(t *testing.T, comm []byte, started uint64, ended bool) {
		comm = comm[:min(len(comm), 15)]
		state := "S"
		if ended {
			state = "Z"
		}
		line := fmt.Sprintf("7 (%s) %s 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %d 20 21 22\n", comm, state, started)
		o := Owners{proc: fstest.MapFS{"7/stat": {Data: []byte(line)}, "8/stat": {Data: comm}}}
		got, alive := o.started(7)
		require.True(t, alive)
		require.Equal(t, fmt.Sprint(started), got)
		require.Equal(t, ended, o.ended("7"))
		_, _ = o.started(8) // a line that is cut off
		_ = o.ended("8")
		_, alive = o.started(9)
		require.False(t, alive)
	})
}
