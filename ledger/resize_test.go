package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// writeLimit is an apply that writes what the container is let have, as the limits file does.
func writeLimit(dir string, claim ledger.Claim) error {
	data, err := json.Marshal(claim.Shares)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "limits"), data, 0o644)
}

// readLimit is what the container of the id is let have.
func readLimit(t testing.TB, ledger *ledger.Ledger, id string) (shares []grant.Share) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(ledger.Dir(id), "limits"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &shares))
	return shares
}

// claimLimited reserves a claim with the limits file of writeLimit.
func claimLimited(t testing.TB, ledger *ledger.Ledger, c ledger.Claim) {
	t.Helper()
	_, err := ledger.Claim(background, c, testGPUs(), func(dir string) error { return writeLimit(dir, c) })
	require.NoError(t, err)
}

// fewer are the GPUs after an agent was configured to grant so many of their cores.
func fewer(cores int) map[string]grant.GPU {
	gpus := testGPUs()
	for uuid, gpu := range gpus {
		gpu.CorePercent = cores
		gpus[uuid] = gpu
	}
	return gpus
}

func TestResize(t *testing.T) {
	other := grant.Share{UUID: gpuB, MemoryMiB: 500, CorePercent: 50}
	mig := grant.Share{UUID: "MIG-0a000000-1111-2222-3333-444455556666", MemoryMiB: 5000, CorePercent: 100}
	for _, test := range []struct {
		name   string
		has    []grant.Share
		shares []grant.Share
		gpus   map[string]grant.GPU // testGPUs where nil
		want   error
		says   string
	}{
		{"more", []grant.Share{share(8000, 30)}, []grant.Share{share(9000, 40)}, nil, nil, ""},
		{"all that is left", []grant.Share{share(8000, 30)}, []grant.Share{share(60_000, 60)}, nil, nil, ""},
		{"less", []grant.Share{share(8000, 30)}, []grant.Share{share(1, 1)}, nil, nil, ""},
		{"one up, one down", []grant.Share{share(8000, 30)}, []grant.Share{share(9000, 10)}, nil, nil, ""},
		{"no limit of cores", []grant.Share{share(8000, 30)}, []grant.Share{share(8000, 0)}, nil, nil, ""},
		{"no limit of cores, of a GPU that is gone", []grant.Share{share(8000, 30)}, []grant.Share{share(8000, 0)}, map[string]grant.GPU{}, grant.ErrUnknownGPU, "no such GPU"},
		{"no limit of cores and less memory, of a GPU that is gone", []grant.Share{share(8000, 30)}, []grant.Share{share(7000, 0)}, map[string]grant.GPU{}, grant.ErrUnknownGPU, "no such GPU"},
		{"no limit of cores where others have all that can be reserved now", []grant.Share{share(8000, 30)}, []grant.Share{share(8000, 0)}, fewer(40), grant.ErrOverbooked,
			"have all: 40 of 40 %"},
		{"no limit of cores where others leave one", []grant.Share{share(8000, 30)}, []grant.Share{share(8000, 0)}, fewer(41), nil, ""},
		{"none that had none, of a GPU that is gone", []grant.Share{share(8000, 0)}, []grant.Share{share(7000, 0)}, map[string]grant.GPU{}, nil, ""},
		{"a limit in place of none, that others have", []grant.Share{share(8000, 0)}, []grant.Share{share(8000, 61)}, nil, grant.ErrOverbooked, "cores 61 % requested, 60 of 100 % free"},
		{"the same", []grant.Share{share(8000, 30)}, []grant.Share{share(8000, 30)}, nil, nil, ""},
		{"two GPUs", []grant.Share{share(8000, 30), other}, []grant.Share{share(9000, 30), other}, nil, nil, ""},
		{"less of a GPU that is gone", []grant.Share{share(8000, 30)}, []grant.Share{share(7000, 30)}, map[string]grant.GPU{}, nil, ""},
		{"too much memory", []grant.Share{share(8000, 30)}, []grant.Share{share(60_001, 30)}, nil, grant.ErrOverbooked,
			"memory 52001 MiB requested, 52000 of 100000 MiB free in addition to its share"},
		{"too many cores", []grant.Share{share(8000, 30)}, []grant.Share{share(8000, 61)}, nil, grant.ErrOverbooked, "cores 31 % requested, 30 of 100 % free"},
		{"more of a GPU that is gone", []grant.Share{share(8000, 30)}, []grant.Share{share(9000, 30)}, map[string]grant.GPU{}, grant.ErrUnknownGPU, "no such GPU"},
		{"another GPU", []grant.Share{share(8000, 30)}, []grant.Share{other}, nil, grant.ErrMalformed, "keeps its GPUs"},
		{"a GPU more", []grant.Share{share(8000, 30)}, []grant.Share{share(8000, 30), other}, nil, grant.ErrMalformed, "keeps its GPUs"},
		{"no memory", []grant.Share{share(8000, 30)}, []grant.Share{share(0, 30)}, nil, grant.ErrMalformed, "memory 0 MiB"},
		{"a MIG device", []grant.Share{mig}, []grant.Share{{UUID: mig.UUID, MemoryMiB: 4000, CorePercent: 100}}, nil, grant.ErrMalformed, "whole"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ledger := openLedger(t, t.TempDir())
			gpus := testGPUs()
			gpus[mig.UUID] = grant.GPU{UUID: mig.UUID, MemoryMiB: 5000, CorePercent: 100, Replicas: 1}
			claim := claimOf("c1", test.has...)
			_, err := ledger.Claim(background, claim, gpus, func(dir string) error { return writeLimit(dir, claim) })
			require.NoError(t, err)
			_, err = ledger.Claim(background, claimOf("neighbour", share(40_000, 40)), gpus, nil)
			require.NoError(t, err)
			was := snapshot(t, ledger)
			if test.gpus != nil {
				gpus = test.gpus
			}

			before, err := ledger.Resize(background, "c1", test.shares, gpus, writeLimit)
			require.ErrorIs(t, err, test.want)
			if test.want != nil {
				assert.ErrorContains(t, err, test.says)
				assert.Equal(t, was, snapshot(t, ledger))
				assert.Equal(t, test.has, readLimit(t, ledger, "c1"))
				return
			}
			assert.Equal(t, test.has, before)
			assert.Equal(t, test.shares, readLimit(t, ledger, "c1"))
			now := snapshot(t, openLedger(t, filepath.Dir(filepath.Dir(ledger.Dir("c1"))))) // what others read
			assert.Equal(t, snapshot(t, ledger), now)
			require.Len(t, now.Entries, 2)
			want := was.Entries[0]
			want.Shares = test.shares
			assert.Equal(t, want, now.Entries[0], "nothing else of the claim has changed")
		})
	}
}

func TestResizeOfNothing(t *testing.T) {
	store := openLedger(t, t.TempDir())
	claimLimited(t, store, claimOf("ended", share(100, 10)))
	require.NoError(t, store.Release(background, "ended"))
	for _, id := range []string{"ended", "unknown"} {
		_, err := store.Resize(background, id, []grant.Share{share(200, 10)}, testGPUs(), writeLimit)
		require.ErrorIs(t, err, ledger.ErrNoClaim, id)
	}
	_, err := store.Resize(background, "../x", []grant.Share{share(200, 10)}, testGPUs(), writeLimit)
	require.ErrorIs(t, err, grant.ErrMalformed)
}

// TestResizeKeepsTheAttempt: an attempt that was resized is still the one that counts, and
// is replaced by the next one, not by an earlier.
func TestResizeKeepsTheAttempt(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	first := claimOf("a1", share(1000, 10))
	claimLimited(t, store, first)
	second := first
	second.ContainerID = "a2"
	claimLimited(t, store, second)
	_, err := store.Resize(background, "a2", []grant.Share{share(2000, 10)}, testGPUs(), writeLimit)
	require.NoError(t, err)
	third := second
	third.ContainerID, third.Shares = "a3", []grant.Share{share(2000, 10)}
	claimLimited(t, store, third)
	want := map[string]ledger.State{"a1": ledger.StateReleased, "a2": ledger.StateReleased, "a3": ledger.StateActive}
	assert.Equal(t, want, states(snapshot(t, openLedger(t, dir))))
}

// TestResizeWhoseLimitsFail: a resize that can't write the limits reserves nothing. If it can't write
// the old limits either, the higher amounts stay reserved.
func TestResizeWhoseLimitsFail(t *testing.T) {
	full := errors.New("no space")
	for failures, want := range map[int]int64{1: 1000, 2: 2000} {
		store := openLedger(t, t.TempDir())
		claimLimited(t, store, claimOf("c1", share(1000, 10)))
		calls := 0
		_, err := store.Resize(background, "c1", []grant.Share{share(2000, 10)}, testGPUs(), func(dir string, c ledger.Claim) error {
			if calls++; calls <= failures {
				return full
			}
			return writeLimit(dir, c)
		})
		require.ErrorIs(t, err, full)
		assert.Equal(t, want, snapshot(t, store).Claims()[0].Shares[0].MemoryMiB)
		assert.Equal(t, int64(1000), readLimit(t, store, "c1")[0].MemoryMiB)

		_, err = store.Resize(background, "c1", []grant.Share{share(2000, 10)}, testGPUs(), writeLimit)
		require.NoError(t, err)
		assert.Equal(t, int64(2000), readLimit(t, store, "c1")[0].MemoryMiB, "done again it is whole")
	}
}

// TestResizeWritesLimitsOutsideOfTheLedgersLock: while limits are written, claims and resizes of
// other containers go on. A second resize of the same container waits.
func TestResizeWritesLimitsOutsideOfTheLedgersLock(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	claimLimited(t, store, claimOf("c1", share(1000, 10)))
	_, err := store.Resize(background, "c1", []grant.Share{share(2000, 5)}, testGPUs(), func(claimDir string, c ledger.Claim) error {
		for _, other := range []*ledger.Ledger{store, openLedger(t, dir)} {
			require.Equal(t, share(2000, 10), snapshot(t, other).Claims()[0].Shares[0], "the higher amounts are reserved")
			id := fmt.Sprint("new", len(snapshot(t, other).Entries))
			claimLimited(t, other, claimOf(id, share(100, 1)))
			_, err := other.Resize(background, id, []grant.Share{share(200, 2)}, testGPUs(), writeLimit)
			require.NoError(t, err)
			// The time must be enough to come to the other resize.
			for patience := 10 * time.Millisecond; patience < time.Minute; patience *= 2 {
				ctx, cancel := context.WithTimeout(background, patience)
				_, err = other.Resize(ctx, "c1", []grant.Share{share(3000, 10)}, testGPUs(), writeLimit)
				cancel()
				require.ErrorIs(t, err, context.DeadlineExceeded)
				if strings.Contains(err.Error(), "another resize") {
					break
				}
			}
			require.ErrorContains(t, err, "another resize")
		}
		return writeLimit(claimDir, c)
	})
	require.NoError(t, err)
	assert.Equal(t, share(2000, 5), readLimit(t, store, "c1")[0])
	assert.Len(t, snapshot(t, store).Claims(), 3)
}

// TestResizeLimitsCoresThatOthersTookMeanwhile: cores without a limit are not reserved, so other
// containers can take them before the new limit is reserved.
func TestResizeLimitsCoresThatOthersTookMeanwhile(t *testing.T) {
	store := openLedger(t, t.TempDir())
	claimLimited(t, store, claimOf("c1", share(1000, 0)))
	took := false
	_, err := store.Resize(background, "c1", []grant.Share{share(1000, 50)}, testGPUs(), func(dir string, c ledger.Claim) error {
		if !took {
			took = true
			claimLimited(t, store, claimOf("c2", share(1000, 60)))
		}
		return writeLimit(dir, c)
	})
	require.ErrorIs(t, err, grant.ErrOverbooked)
	assert.Equal(t, share(1000, 0), snapshot(t, store).Entries[0].Shares[0])
	assert.Equal(t, share(1000, 0), readLimit(t, store, "c1")[0])
}

// TestReapply: after a killed resize the limits are set to what is reserved.
func TestReapply(t *testing.T) {
	store := openLedger(t, t.TempDir())
	claimLimited(t, store, claimOf("c1", share(1000, 10)))
	require.NoError(t, writeLimit(store.Dir("c1"), claimOf("c1", share(500, 10))))
	require.NoError(t, store.Reapply(background, "c1", writeLimit))
	assert.Equal(t, share(1000, 10), readLimit(t, store, "c1")[0])
	require.NoError(t, store.Reapply(background, "ended", func(string, ledger.Claim) error { return errors.New("called") }))
}

func TestResizeWhoseContextHasEnded(t *testing.T) {
	ledger := openLedger(t, t.TempDir())
	claimLimited(t, ledger, claimOf("c1", share(1000, 10)))
	ctx, cancel := context.WithCancel(background)
	cancel()
	_, err := ledger.Resize(ctx, "c1", []grant.Share{share(2000, 10)}, testGPUs(), writeLimit)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, int64(1000), snapshot(t, ledger).Claims()[0].Shares[0].MemoryMiB)
}

// allowed reports whether a container's limit is not above its reservation; no limit of cores is the largest.
func allowed(limit, reserved grant.Share) bool {
	return limit.MemoryMiB <= reserved.MemoryMiB && (reserved.CorePercent == 0 || limit.CorePercent > 0 && limit.CorePercent <= reserved.CorePercent)
}

// TestResizeNeverOverbooks plays resizes of two processes' ledgers against plain sums.
func TestResizeNeverOverbooks(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		require.NoError(r, err)
		ledgers := []*ledger.Ledger{openLedger(t, dir), openLedger(t, dir)}
		gpus := map[string]grant.GPU{gpuA: {UUID: gpuA, MemoryMiB: 1000, CorePercent: 100, Replicas: 10}}
		held := map[string]grant.Share{}
		for i := range 4 {
			c := claimOf(fmt.Sprint("c", i), share(rapid.Int64Range(1, 250).Draw(r, "memory"), rapid.IntRange(0, 25).Draw(r, "cores")))
			_, err := ledgers[0].Claim(background, c, gpus, func(dir string) error { return writeLimit(dir, c) })
			require.NoError(r, err)
			held[c.ContainerID] = c.Shares[0]
		}
		for range rapid.IntRange(1, 20).Draw(r, "steps") {
			id := fmt.Sprint("c", rapid.IntRange(0, 3).Draw(r, "id"))
			want := share(rapid.Int64Range(1, 900).Draw(r, "memory"), rapid.IntRange(0, 90).Draw(r, "cores"))
			old, sum := held[id], ledger.Usage{}
			for _, s := range held {
				sum.MemoryMiB += s.MemoryMiB
				sum.CorePercent += s.CorePercent
			}
			fits := (want.MemoryMiB <= old.MemoryMiB || sum.MemoryMiB-old.MemoryMiB+want.MemoryMiB <= 1000) &&
				(want.CorePercent <= old.CorePercent || sum.CorePercent-old.CorePercent+want.CorePercent <= 100)
			_, err := ledgers[rapid.IntRange(0, 1).Draw(r, "ledger")].Resize(background, id, []grant.Share{want}, gpus, func(dir string, c ledger.Claim) error {
				require.True(r, allowed(c.Shares[0], want) || allowed(c.Shares[0], old))
				return writeLimit(dir, c)
			})
			require.Equal(r, fits, err == nil, "%+v of %+v: %v", want, held, err)
			if fits {
				held[id] = want
			}
			s := snapshot(t, ledgers[rapid.IntRange(0, 1).Draw(r, "reader")])
			for _, c := range s.Claims() {
				require.Equal(r, held[c.ContainerID], c.Shares[0])
				require.Equal(r, c.Shares, readLimit(t, ledgers[0], c.ContainerID))
			}
		}
	})
}

// resizeForever is a helper process: it resizes one container up and down.
func resizeForever(dir string) error {
	ledger, err := ledger.Open(filepath.Join(dir, "state"))
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	for {
		want := []grant.Share{share(int64(1+random.IntN(50_000)), random.IntN(100))}
		if _, err := ledger.Resize(background, "c1", want, testGPUs(), placeLimit); err != nil {
			return err
		}
	}
}

// placeLimit is writeLimit, complete or not at all.
func placeLimit(dir string, claim ledger.Claim) error {
	data, err := json.Marshal(claim.Shares)
	if err != nil {
		return err
	}
	next := filepath.Join(dir, fmt.Sprint(".limits-", os.Getpid()))
	if err := os.WriteFile(next, data, 0o644); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(dir, "limits"))
}

// TestKilledWhileItResizes: two processes resize one container and are killed. Its limits never exceed
// the reservation, and the next resize repairs both.
func TestKilledWhileItResizes(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	inBetween := 0
	dir := shmDir(t)
	state := filepath.Join(dir, "state")
	claimLimited(t, openLedger(t, state), claimOf("c1", share(1000, 10)))
	for round := range 40 {
		commands := []*exec.Cmd{startHelper(t, "resize", dir, ""), startHelper(t, "resize", dir, "")}
		time.Sleep(time.Duration(10+random.IntN(20)) * time.Millisecond)
		for _, command := range commands {
			require.NoError(t, command.Process.Kill())
			_ = command.Wait() // killed: always an error
			require.Equal(t, syscall.SIGKILL, command.ProcessState.Sys().(syscall.WaitStatus).Signal(), "round %d: it failed by itself", round)
		}

		ledger := openLedger(t, state)
		claims := snapshot(t, ledger).Claims()
		require.Len(t, claims, 1)
		limit := readLimit(t, ledger, "c1")
		require.True(t, allowed(limit[0], claims[0].Shares[0]), "round %d: %+v of %+v", round, limit, claims[0].Shares)
		if limit[0] != claims[0].Shares[0] {
			inBetween++
		}
		_, err := ledger.Resize(background, "c1", claims[0].Shares, testGPUs(), placeLimit)
		require.NoError(t, err)
		require.Equal(t, claims[0].Shares, readLimit(t, ledger, "c1"))
	}
	t.Logf("%d of 40 kills came between the book and the limits", inBetween)
}
