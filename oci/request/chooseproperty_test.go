package request

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// scene is a request on a node, made up.
type scene struct {
	gpus     map[string]grant.GPU
	reserved map[string]ledger.Usage
	c        Config
	request  Request
}

func makeScene(r *rand.Rand) scene {
	s := scene{gpus: map[string]grant.GPU{}, reserved: map[string]ledger.Usage{}, c: operator()}
	s.c.Indices = map[string]string{}
	for i := range r.IntN(7) {
		uuid := fmt.Sprintf("GPU-%08d-0000-4000-8000-000000000000", i)
		gpu := grant.GPU{UUID: uuid, MemoryMiB: 4 + r.Int64N(12), CorePercent: 50 + 50*r.IntN(3), Replicas: 1 + r.IntN(4)}
		used := ledger.Usage{MemoryMiB: r.Int64N(gpu.MemoryMiB + 2), CorePercent: 20 * r.IntN(5), Replicas: r.IntN(gpu.Replicas + 1)}
		if r.IntN(4) == 0 {
			uuid = "MIG-" + uuid[4:]
			gpu.UUID, gpu.CorePercent, gpu.Replicas = uuid, 100, 1
			used = []ledger.Usage{{}, {MemoryMiB: gpu.MemoryMiB, CorePercent: 100, Replicas: 1}}[r.IntN(2)]
		}
		s.gpus[uuid], s.reserved[uuid] = gpu, used
		if r.IntN(8) > 0 {
			s.c.Indices[uuid] = fmt.Sprint(i)
		}
		if r.IntN(5) > 0 {
			s.c.Devices = append(s.c.Devices, uuid)
		}
	}
	amount := func() Amount {
		a := Amount{CorePercent: Cores(10 * r.IntN(8))}
		if r.IntN(3) == 0 {
			a.Memory.Percent = 1 + r.IntN(100)
		} else {
			a.Memory.MiB = 1 + r.Int64N(8)
		}
		return a
	}
	s.request = Request{Amount: amount(), Devices: Devices{Count: 1 + r.IntN(4)}, Each: map[int]Amount{}}
	if r.IntN(2) == 0 {
		for i := range s.request.Devices.Count {
			s.request.Each[i] = amount()
		}
	}
	if r.IntN(4) == 0 {
		s.c.Maximum = Limit{Memory: []Size{{MiB: 5}, {Percent: 40}, {}}[r.IntN(3)], CorePercent: []Cores{0, 40}[r.IntN(2)], Devices: r.IntN(4)}
	}
	return s
}

// may reports by the words of the rules, and the ledger's own check, whether a GPU may have
// an amount, and what is reserved of it then.
func (s scene) may(uuid string, a Amount) (grant.Share, bool) {
	gpu, used, most := s.gpus[uuid], s.reserved[uuid], s.c.Maximum
	requested := a.Memory.MiB
	if a.Memory.Percent > 0 {
		requested = max(gpu.MemoryMiB*int64(a.Memory.Percent)/100, 1)
	}
	if a.CorePercent == 0 {
		a.CorePercent = most.CorePercent
	}
	share := grant.Share{UUID: uuid, MemoryMiB: requested, CorePercent: int(a.CorePercent)}
	ok := len(s.c.Devices) == 0 || slices.Contains(s.c.Devices, uuid)
	if grant.IsMIG(uuid) {
		share.MemoryMiB, share.CorePercent = gpu.MemoryMiB, 100
		ok = ok && requested <= gpu.MemoryMiB
	} else {
		ok = ok && (most.CorePercent == 0 || share.CorePercent <= int(most.CorePercent))
	}
	limit := most.Memory.MiB
	if most.Memory.Percent > 0 {
		limit = max(gpu.MemoryMiB*int64(most.Memory.Percent)/100, 1)
	}
	ok = ok && (limit == 0 || share.MemoryMiB <= limit)
	return share, ok && grant.CheckGPUs([]grant.Share{share}, s.gpus) == nil &&
		share.MemoryMiB <= gpu.MemoryMiB-used.MemoryMiB &&
		(share.CorePercent == 0 || share.CorePercent <= gpu.CorePercent-used.CorePercent) && used.Replicas < gpu.Replicas
}

// left is what the choice leaves on its GPUs, and of MIG devices what it takes.
func (s scene) left(shares []grant.Share) (total int64) {
	for _, share := range shares {
		if grant.IsMIG(share.UUID) {
			total += share.MemoryMiB
		} else {
			total += s.gpus[share.UUID].MemoryMiB - s.reserved[share.UUID].MemoryMiB - share.MemoryMiB
		}
	}
	return total
}

// every calls fn for every way to give the amounts GPUs of one kind.
func (s scene) every(mig bool, so []grant.Share, fn func([]grant.Share)) {
	i := len(so)
	if i == s.request.Devices.Count {
		fn(so)
		return
	}
	for uuid := range s.gpus {
		a := s.request.Each[i].or(s.request.Amount)
		taken := slices.ContainsFunc(so, func(other grant.Share) bool { return other.UUID == uuid })
		if share, ok := s.may(uuid, a); ok && !taken && grant.IsMIG(uuid) == mig {
			s.every(mig, append(slices.Clone(so), share), fn)
		}
	}
}

// What Choose returns passes the ledger's checks and fits; it fails only if no set of GPUs fits;
// and no other set leaves less.
func TestChooseAgainstEveryWay(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 2026))
	chosen, refused, several, mig := 0, 0, 0, 0
	for range 30000 {
		s := makeScene(r)
		best, ways := int64(-1), 0
		for _, kind := range []bool{false, true} {
			if ways > 0 {
				break // GPUs come before MIG devices
			}
			s.every(kind, nil, func(shares []grant.Share) {
				ways++
				if left := s.left(shares); best < 0 || left < best {
					best = left
				}
			})
		}
		if most := s.c.Maximum.Devices; most > 0 && s.request.Devices.Count > most {
			ways = 0
		}
		for i := range s.request.Devices.Count { // requested for more compute time than the maximum: refused also with MIG devices
			if most := s.c.Maximum.CorePercent; most > 0 && s.request.Each[i].or(s.request.Amount).CorePercent > most {
				ways = 0
			}
		}
		shares, err := Choose(&s.request, s.gpus, s.reserved, s.c)
		if err != nil {
			require.Zero(t, ways, "%+v: %v", s, err)
			require.True(t, errors.Is(err, grant.ErrOverbooked) || errors.Is(err, ErrForbidden) || errors.Is(err, grant.ErrUnknownGPU), "%v", err)
			refused++
			continue
		}
		require.NotZero(t, ways, "%+v: %+v", s, shares)
		require.NoError(t, grant.ValidateShares(shares))
		require.NoError(t, grant.CheckGPUs(shares, s.gpus))
		require.Len(t, shares, s.request.Devices.Count)
		percentages := false
		for i, share := range shares {
			a := s.request.Each[i].or(s.request.Amount)
			want, ok := s.may(share.UUID, a)
			require.True(t, ok, "%+v: %+v", s, shares)
			require.Equal(t, want, share)
			percentages = percentages || a.Memory.Percent > 0
		}
		if len(s.request.Each) == 0 || !percentages {
			require.Equal(t, best, s.left(shares), "%+v: %+v", s, shares)
		}
		chosen++
		if len(shares) > 1 {
			several++
		}
		if grant.IsMIG(shares[0].UUID) {
			mig++
		}
	}
	for what, count := range map[string]int{"chosen": chosen, "refused": refused, "several": several, "MIG": mig} {
		require.Greater(t, count, 500, what)
	}
}

// Claims that Choose makes one after the other are all admitted by the ledger itself, until
// it reports that no GPU is free.
func TestChooseFillsALedger(t *testing.T) {
	store, err := ledger.Open(t.TempDir())
	require.NoError(t, err)
	defer store.Close()
	gpus := map[string]grant.GPU{
		gpu0: {UUID: gpu0, MemoryMiB: 1000, CorePercent: 100, Replicas: 10},
		gpu1: {UUID: gpu1, MemoryMiB: 500, CorePercent: 100, Replicas: 3},
		mig0: {UUID: mig0, MemoryMiB: 300, CorePercent: 100, Replicas: 1},
	}
	c := operator()
	for i := 0; ; i++ {
		snapshot, err := store.Snapshot(t.Context())
		require.NoError(t, err)
		shares, err := Choose(&Request{Amount: mib(150, 20)}, gpus, snapshot.GPUs, c)
		if err != nil {
			require.ErrorIs(t, err, grant.ErrOverbooked)
			// By compute time 5 on the large GPU, by memory and replicas 3 on the small one, and the MIG device.
			require.Equal(t, 5+3+1, i)
			return
		}
		id := fmt.Sprintf("c%d", i)
		_, err = store.Claim(t.Context(), ledger.Claim{ContainerID: id, Owner: ledger.OwnerRuntime, Container: id, Shares: shares}, gpus, nil)
		require.NoError(t, err)
	}
}

func BenchmarkChoose(b *testing.B) {
	gpus, reserved, c := map[string]grant.GPU{}, map[string]ledger.Usage{}, operator()
	c.Indices = map[string]string{}
	for i := range 16 {
		uuid := fmt.Sprintf("GPU-%08d-0000-4000-8000-000000000000", i)
		gpus[uuid] = grant.GPU{UUID: uuid, MemoryMiB: 141312, CorePercent: 100, Replicas: 10}
		reserved[uuid] = ledger.Usage{MemoryMiB: int64(i) * 4096, CorePercent: 5 * i, Replicas: i / 2}
		c.Indices[uuid] = fmt.Sprint(i)
	}
	env := []string{"PATH=/usr/bin", "GPUSLICE_MEMORY=8GiB", "GPUSLICE_CORES=20", "GPUSLICE_DEVICES=4"}
	for b.Loop() {
		r, err := FromContainer(env, nil, c)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Choose(r, gpus, reserved, c); err != nil {
			b.Fatal(err)
		}
	}
}
