package partition

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

type fixture struct {
	t    *testing.T
	dir  string
	gpu  *gpu
	p    *Partitioner
	held map[string]bool
	boot string
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, dir: filepath.Join(t.TempDir(), "mig"), gpu: newGPU(), held: map[string]bool{}, boot: "boot"}
	f.open()
	return f
}

func (f *fixture) open() {
	var err error
	f.p, err = Open(Config{
		Dir: f.dir, Boot: f.boot, GPUs: f.gpu, Log: slog.New(slog.DiscardHandler), Changed: f.gpu.step,
		Held: func(_ context.Context, uuid string) (bool, error) { return f.held[uuid], nil },
	})
	require.NoError(f.t, err)
}

// restart is a new process, which knows these prepared ResourceClaims.
func (f *fixture) restart(prepared ...string) {
	f.gpu.left = -1
	f.open()
	f.p.Reconcile(f.t.Context(), func(claim string) bool { return slices.Contains(prepared, claim) })
}

// until calls work, and returns false if it was killed.
func (f *fixture) until(work func()) (done bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, is := r.(killed); !is {
				panic(r)
			}
		}
	}()
	work()
	return true
}

func (f *fixture) make(claim string, place Place) (string, error) {
	return f.p.Make(f.t.Context(), claim, place)
}

func (f *fixture) release(claim string) { require.NoError(f.t, f.p.Release(f.t.Context(), claim)) }

func (f *fixture) nothing() {
	f.t.Helper()
	require.Empty(f.t, f.gpu.list)
	require.Empty(f.t, f.p.Records())
	files, err := os.ReadDir(f.dir)
	require.NoError(f.t, err)
	require.Empty(f.t, files)
}

func at(start, size int) Place {
	return Place{GPU: "GPU-a", Profile: size, At: hardware.Place{Start: start, Size: size}}
}

func TestMakeAndRelease(t *testing.T) {
	f := newFixture(t)
	uuid, err := f.make("a", at(4, 4))
	require.NoError(t, err)
	require.Equal(t, uuid, f.gpu.list[0].Compute[0].UUID)
	again, err := f.make("a", at(4, 4))
	require.NoError(t, err)
	require.Equal(t, uuid, again)
	require.NoError(t, f.p.Use("a"))
	_, err = f.make("b", at(4, 4))
	require.ErrorContains(t, err, "another ResourceClaim's")
	_, err = f.make("b", at(6, 1))
	require.ErrorContains(t, err, "another ResourceClaim's", "it overlaps")
	other, err := f.make("b", at(0, 2))
	require.NoError(t, err)
	require.NotEqual(t, uuid, other)
	f.restart("a", "b")
	require.Len(t, f.gpu.list, 2)
	again, err = f.make("a", at(4, 4))
	require.NoError(t, err)
	require.Equal(t, uuid, again, "after a restart of the agent")
	f.release("a")
	f.release("a")
	f.release("unknown")
	require.Len(t, f.gpu.list, 1)
	f.release("b")
	f.nothing()

	info, err := os.Stat(f.dir)
	require.NoError(t, err)
	require.EqualValues(t, 0o700, info.Mode().Perm())
}

func TestForeignInstancesStay(t *testing.T) {
	f := newFixture(t)
	require.True(t, f.gpu.foreign(1, hardware.Place{Start: 5, Size: 1}))
	_, err := f.make("a", at(4, 4))
	require.ErrorContains(t, err, "did not make")
	_, err = f.make("a", at(5, 1))
	require.ErrorContains(t, err, "did not make")
	require.Empty(t, f.p.Records())
	f.restart()
	f.p.Check(t.Context())
	require.Len(t, f.gpu.list, 1)
}

// A reading of the GPUs that is older than the end still lists the MIG device.
func TestEndedRecords(t *testing.T) {
	f := newFixture(t)
	uuid, err := f.make("a", at(4, 4))
	require.NoError(t, err)
	require.Len(t, f.p.Since(time.Time{}), 1)
	f.release("a")
	require.Empty(t, f.p.Records())
	since := f.p.Since(time.Time{})
	require.Len(t, since, 1)
	require.Equal(t, uuid, since[0].UUID)
	require.True(t, since[0].Ending())
	require.Empty(t, f.p.Since(time.Now().Add(time.Hour)))
}

// An administrator takes the place after the agent found it free.
func TestAPlaceThatIsTakenMeanwhile(t *testing.T) {
	f := newFixture(t)
	f.gpu.before = func() {
		_, err := f.gpu.put(4, at(4, 4).At, true) // without a compute instance yet
		require.NoError(t, err)
	}
	_, err := f.make("a", at(4, 4))
	require.ErrorContains(t, err, "insufficient resources")
	require.Empty(t, f.p.Records())
	f.p.Check(t.Context())
	f.restart()
	require.Empty(t, f.gpu.changed)
	require.Len(t, f.gpu.list, 1)
}

// What was made at the place of a MIG device of the agent, after that was destroyed by hand, is not the agent's: with the same IDs, and where
// the driver gives the same UUIDs.
func TestARecordThatOutlivesItsInstance(t *testing.T) {
	for _, when := range []string{"while the agent runs", "while it is away", "and the same UUID, while the agent runs"} {
		t.Run(when, func(t *testing.T) {
			f := newFixture(t)
			f.gpu.sameUUIDs = when == "and the same UUID, while the agent runs"
			_, err := f.make("a", at(4, 4))
			require.NoError(t, err)
			require.NoError(t, f.p.Use("a"))
			f.gpu.remove(at(4, 4).At)
			if when != "while it is away" {
				f.p.Check(t.Context())
				require.Empty(t, f.p.Records())
			}
			require.True(t, f.gpu.foreign(4, at(4, 4).At))
			if when == "while it is away" {
				f.restart("a")
			}
			f.p.Check(t.Context())
			f.release("a")
			f.restart()
			require.Len(t, f.gpu.list, 1)
			require.Empty(t, f.gpu.changed)
			require.Empty(t, f.p.Records())
		})
	}
	t.Run("a reboot", func(t *testing.T) {
		f := newFixture(t)
		f.gpu.sameUUIDs = true
		_, err := f.make("a", at(4, 4))
		require.NoError(t, err)
		f.gpu.remove(at(4, 4).At)
		require.True(t, f.gpu.foreign(4, at(4, 4).At))
		f.boot = "next"
		f.restart()
		require.Len(t, f.gpu.list, 1)
		require.Empty(t, f.p.Records())
	})
}

func TestInUse(t *testing.T) {
	f := newFixture(t)
	uuid, err := f.make("a", at(4, 4))
	require.NoError(t, err)
	require.NoError(t, f.p.Use("a"))
	f.held[uuid] = true
	f.release("a")
	require.True(t, f.p.Records()[0].Ending())
	f.p.Check(t.Context())
	require.Len(t, f.gpu.list, 1)
	require.Len(t, f.gpu.list[0].Compute, 1, "a container has it")
	delete(f.held, uuid)
	f.gpu.busy[uuid] = true
	f.p.Check(t.Context())
	_, err = f.make("b", at(6, 1))
	require.ErrorIs(t, err, errGPUInUse)
	f.restart("a")
	require.Len(t, f.gpu.list, 1)
	delete(f.gpu.busy, uuid)
	_, err = f.make("b", at(6, 1))
	require.NoError(t, err)
	f.release("b")
	f.nothing()
}

// An error of NVML leaves nothing, and one while destroying is no error of Release: a pod must end though its GPU is lost.
func TestErrors(t *testing.T) {
	f := newFixture(t)
	for _, call := range []string{"list", "create", "info", "compute"} {
		f.gpu.fails[call] = errors.New(call)
		_, err := f.make("a", at(4, 4))
		require.ErrorContains(t, err, call)
		f.nothing()
	}
	for _, call := range []string{"list", "destroy"} {
		_, err := f.make("a", at(4, 4))
		require.NoError(t, err)
		f.gpu.fails[call] = errors.New(call)
		f.release("a")
		require.Len(t, f.gpu.list, 1)
		f.p.Check(t.Context())
		f.nothing()
	}
}

func TestUnreadableFiles(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, os.Mkdir(filepath.Join(f.dir, "directory.json"), 0o700))
	uuid, err := f.make("a", at(4, 4))
	require.NoError(t, err)
	f.restart("a")
	require.Len(t, f.p.Records(), 1)
	require.Equal(t, uuid, f.p.Records()[0].UUID)
}

func TestDamagedRecords(t *testing.T) {
	f := newFixture(t)
	_, err := f.make("a", at(4, 4))
	require.NoError(t, err)
	for _, content := range []string{"", "{", `{"gpu":"../x"}`, `{"gpu":"GPU-b","profile":4,"at":{"Start":4,"Size":4}}`} {
		require.NoError(t, os.WriteFile(f.p.path(at(4, 4)), []byte(content), 0o600))
		f.restart("a")
		require.Empty(t, f.p.Records())
		require.Len(t, f.gpu.list, 1, "what can't be proven stays")
	}
}
