package nriplugin

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The sums of sandboxes' sizes stay what the containers add up to, whatever comes.
func TestSizesOfKnownContainers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "b", "c", "d"}
	name := func() string { return names[rnd.IntN(len(names))] }
	var all known
	for range 10000 {
		id := name()
		switch rnd.IntN(20) {
		case 0:
			list := map[string]Known{}
			for range rnd.IntN(4) {
				list[name()] = Known{pod: name(), size: rnd.IntN(3)}
			}
			all.replace(list)
		case 1, 2, 3, 4:
			all.remove(id)
		case 5, 6, 7, 8:
			all.ended(id)
		default:
			all.add(id, Known{pod: name(), size: rnd.IntN(3)})
		}
		left := 0
		for _, pod := range names {
			want := 0
			for other, c := range all.byID {
				if c.pod == pod && other != id {
					want += c.size
				}
			}
			require.Equal(t, want, all.sizeOfOthers(pod, id))
			if all.sizes[pod] > 0 {
				left++
			}
		}
		require.Len(t, all.sizes, left, "sandboxes that are gone are forgotten")
	}
}
