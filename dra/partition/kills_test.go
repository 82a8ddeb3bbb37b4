package partition

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var kills = flag.Int("kills", 300, "kills of TestManyKills")

// life is what a driver does for a ResourceClaim.
func (f *fixture) life(claim string, place Place, prepared map[string]bool) {
	if _, err := f.make(claim, place); err != nil {
		return
	}
	prepared[claim] = true
	f.gpu.step()
	require.NoError(f.t, f.p.Use(claim))
	delete(prepared, claim)
	f.gpu.step()
	f.release(claim)
}

// At each step, with and without an administrator that takes the place while the agent is away.
func TestKilledAtEachStep(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		for step := 0; ; step++ {
			f := newFixture(t)
			f.gpu.sameUUIDs = true
			prepared := map[string]bool{}
			f.gpu.left = step
			if f.until(func() { f.life("a", at(4, 4), prepared) }) {
				require.Greater(t, step, 10)
				break
			}
			taken := foreign && f.gpu.foreign(4, at(4, 4).At)
			var known []string
			for claim := range prepared {
				known = append(known, claim)
			}
			f.restart(known...)
			if taken {
				require.Len(t, f.gpu.list, 1, "step %d", step)
				require.Empty(t, f.gpu.changed, "step %d", step)
				continue
			}
			require.Len(t, f.gpu.list, len(known), "step %d", step)
			require.Len(t, f.p.Records(), len(known), "step %d", step)
			// The kubelet repeats what got no answer.
			_, err := f.make("a", at(4, 4))
			require.NoError(t, err)
			f.release("a")
			f.nothing()
		}
	}
}

// Kills at random steps, also of the repair, with several ResourceClaims, processes that have instances, and an administrator.
func TestManyKills(t *testing.T) {
	f := newFixture(t)
	random := rand.New(rand.NewPCG(1, 2))
	places := []Place{at(0, 8), at(0, 4), at(4, 4), at(0, 2), at(2, 2), at(4, 2), at(0, 1), at(1, 1), at(4, 1), at(6, 1)}
	prepared := map[string]bool{}
	claimed := map[string]Place{}
	done := 0
	for claim := 0; done < *kills; claim++ {
		f.gpu.sameUUIDs = random.IntN(2) == 0 && len(f.gpu.list) == 0
		f.gpu.left = random.IntN(60)
		finished := f.until(func() {
			for range 3 {
				name := fmt.Sprint(claim, "-", random.IntN(3))
				switch {
				case random.IntN(2) == 0 || len(claimed) == 0:
					place := places[random.IntN(len(places))]
					claimed[name] = place
					if uuid, err := f.make(name, place); err == nil {
						prepared[name] = true
						require.NoError(t, f.p.Use(name))
						f.gpu.busy[uuid] = random.IntN(4) == 0
					}
				default:
					old := slices.Sorted(maps.Keys(claimed))[random.IntN(len(claimed))]
					delete(prepared, old)
					f.gpu.step()
					f.release(old)
					delete(claimed, old)
				}
				f.p.Check(t.Context())
			}
		})
		if !finished {
			done++
		}
		if random.IntN(3) == 0 {
			place := places[random.IntN(len(places))]
			f.gpu.foreign(place.Profile, place.At)
		}
		// The repair is killed too.
		for {
			f.gpu.left = random.IntN(30)
			if f.until(func() {
				f.open()
				f.p.Reconcile(t.Context(), func(claim string) bool { return prepared[claim] })
			}) {
				break
			}
			done++
		}
		f.gpu.left = -1
		require.Empty(t, f.gpu.changed, "a foreign instance was destroyed")
		records := f.p.Records()
		for _, i := range f.gpu.list {
			mine := slices.ContainsFunc(records, func(r Record) bool { return r.At == i.Place })
			require.Equal(t, !i.foreign, mine, "%+v %+v", i, records)
		}
		for _, r := range records {
			require.True(t, r.Claim != "" && prepared[r.Claim] || f.gpu.busy[r.UUID], "%+v", r)
		}
		if random.IntN(5) == 0 { // all ends
			clear(f.gpu.busy)
			for old := range claimed {
				delete(prepared, old)
				f.release(old)
				delete(claimed, old)
			}
			f.p.Check(t.Context())
			require.Empty(t, f.p.Records())
			f.gpu.list = slices.DeleteFunc(f.gpu.list, func(i instance) bool { return i.foreign })
			require.Empty(t, f.gpu.list)
		}
	}
	t.Logf("%d kills", done)
}
