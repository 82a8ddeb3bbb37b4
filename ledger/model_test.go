package ledger_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// modelLedger computes the expected answers of the ledger in the simplest way: it keeps a list and adds up
// all entries for each answer.
type modelLedger struct {
	claims []ledger.Claim // in the order in which they were made
	state  map[string]ledger.State
	gpus   map[string]grant.GPU
}

// find returns the claim of the id, or nil.
func (m *modelLedger) find(id string) *ledger.Claim {
	for i := range m.claims {
		if m.claims[i].ContainerID == id {
			return &m.claims[i]
		}
	}
	return nil
}

// used adds up a GPU, without the attempts of the claim's container.
func (m *modelLedger) used(uuid string, except *ledger.Claim) (u ledger.Usage) {
	for _, c := range m.claims {
		if m.state[c.ContainerID] != ledger.StateActive || except != nil && isAttempt(&c, except) {
			continue
		}
		for _, s := range c.Shares {
			if s.UUID == uuid {
				u.MemoryMiB += s.MemoryMiB
				u.CorePercent += s.CorePercent
				u.Replicas++
			}
		}
	}
	return u
}

func isAttempt(a, b *ledger.Claim) bool {
	return a.PodUID == b.PodUID && a.Container == b.Container && a.Owner == b.Owner
}

// claim answers the error's kind.
func (m *modelLedger) claim(c ledger.Claim) error {
	if m.state[c.ContainerID] == ledger.StateActive {
		old := m.find(c.ContainerID)
		if isAttempt(old, &c) && fmt.Sprint(old.Shares) == fmt.Sprint(c.Shares) {
			return nil
		}
		return ledger.ErrConflict
	}
	for _, s := range c.Shares {
		if _, ok := m.gpus[s.UUID]; !ok {
			return grant.ErrUnknownGPU
		}
		if s.MemoryMiB > m.gpus[s.UUID].MemoryMiB {
			return grant.ErrOverbooked
		}
	}
	for _, old := range m.claims {
		if c.Position != nil && old.Position != nil && *c.Position == *old.Position && old.PodUID == c.PodUID && old.Container != c.Container {
			return ledger.ErrPositionTaken
		}
	}
	for _, s := range c.Shares {
		u, gpu := m.used(s.UUID, &c), m.gpus[s.UUID]
		if u.MemoryMiB+s.MemoryMiB > gpu.MemoryMiB || s.CorePercent > 0 && u.CorePercent+s.CorePercent > gpu.CorePercent || u.Replicas >= gpu.Replicas {
			return grant.ErrOverbooked
		}
	}
	m.remove(c.ContainerID)
	for _, old := range m.claims {
		if isAttempt(&old, &c) {
			m.state[old.ContainerID] = ledger.StateReleased
		}
	}
	m.claims, m.state[c.ContainerID] = append(m.claims, c), ledger.StateActive
	return nil
}

func (m *modelLedger) release(id string) {
	if m.state[id] != "" {
		m.state[id] = ledger.StateReleased
	}
}

func (m *modelLedger) remove(id string) {
	var left []ledger.Claim
	for _, c := range m.claims {
		if c.ContainerID != id {
			left = append(left, c)
		}
	}
	m.claims = left
	delete(m.state, id)
}

func (m *modelLedger) reconcile(owner string, live map[string]bool) {
	for _, c := range append([]ledger.Claim(nil), m.claims...) {
		if c.Owner == owner && !live[c.ContainerID] {
			m.remove(c.ContainerID)
		}
	}
}

// randomClaim is one of few containers of few pods, so that steps meet.
func randomClaim(random *rand.Rand) ledger.Claim {
	c := claimOf(fmt.Sprint("c", random.IntN(12)))
	c.PodUID = fmt.Sprint("u", random.IntN(4))
	c.Container = []string{"main", "side"}[random.IntN(2)]
	c.Owner = []string{ledger.OwnerNRI, ledger.OwnerRuntime}[random.IntN(2)]
	for _, uuid := range []string{gpuA, gpuB, gpuX}[random.IntN(2):][:1+random.IntN(2)] {
		if uuid == gpuX && random.IntN(4) > 0 {
			uuid = gpuC
		}
		c.Shares = append(c.Shares, grant.Share{UUID: uuid, MemoryMiB: int64(1 + random.IntN(500)), CorePercent: random.IntN(50)})
	}
	if random.IntN(2) == 0 {
		c.Position, c.Source = new(random.IntN(2)), grant.SourceHAMi
	}
	return c
}

// TestLedgerDoesAsTheModel plays random steps on two ledgers of one directory
// and on the model.
func TestLedgerDoesAsTheModel(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 5))
			gpus := map[string]grant.GPU{}
			for i, uuid := range []string{gpuA, gpuB, gpuC} {
				gpus[uuid] = grant.GPU{UUID: uuid, MemoryMiB: 1000, CorePercent: 100, Replicas: 2 + i}
			}
			m := &modelLedger{state: map[string]ledger.State{}, gpus: gpus}
			dir := shmDir(t)
			ledgers := []*ledger.Ledger{openLedger(t, dir), openLedger(t, dir)}
			for step := range 150 {
				ledger := ledgers[random.IntN(2)]
				c := randomClaim(random)
				what := ""
				switch n := random.IntN(20); {
				case n < 11:
					what = fmt.Sprintf("claim %+v", c)
					_, err := ledger.Claim(background, c, gpus, nil)
					want := m.claim(c)
					require.True(t, errors.Is(err, want), "step %d %s: got %v, want %v", step, what, err, want)
				case n < 15:
					what = "release " + c.ContainerID
					require.NoError(t, ledger.Release(background, c.ContainerID))
					m.release(c.ContainerID)
				case n < 19:
					what = "remove " + c.ContainerID
					require.NoError(t, ledger.Remove(background, c.ContainerID))
					m.remove(c.ContainerID)
				default:
					what = "reconcile"
					live, ids := map[string]bool{}, []string{}
					for i := range 12 {
						if random.IntN(3) > 0 {
							id := fmt.Sprint("c", i)
							live[id], ids = true, append(ids, id)
						}
					}
					_, err := ledger.Reconcile(background, c.Owner, ids)
					require.NoError(t, err)
					m.reconcile(c.Owner, live)
				}
				s := snapshot(t, ledgers[random.IntN(2)])
				require.Equal(t, m.state, states(s), "step %d %s", step, what)
				for uuid := range gpus {
					require.Equal(t, m.used(uuid, nil), s.GPUs[uuid], "step %d %s", step, what)
				}
			}
		})
	}
}
