//go:build root

package slice

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/vgpufstest"
)

const gpu = "GPU-00000001-5151-4000-8000-000000000001"

func newSlice() Slice {
	return Slice{
		Name: "small", Definition: "1GiB", Shares: []grant.Share{{UUID: gpu, MemoryMiB: 1024, CorePercent: 30}},
		GPUs: []grant.GPU{{UUID: gpu, MemoryMiB: 8192, CorePercent: 100, Replicas: 10}},
	}
}

// inUseByOne is the ledger with container c1, which uses the slice.
func inUseByOne(t *testing.T, state string, s Slice) (orphans.Releaser, orphans.Record) {
	t.Helper()
	r, err := openLedger(state)
	require.NoError(t, err)
	t.Cleanup(func() { r.Ledger.Close() })
	record, err := orphans.NewRecord(r.Judge.Proc, os.Getpid())
	require.NoError(t, err)
	record.Slice = s.Name
	require.NoError(t, reserve(context.Background(), r, state, s, "c1", record))
	return r, record
}

// A container that uses a slice is found, whatever is unmounted or damaged.
func TestUserOfASliceThatLostItsFiles(t *testing.T) {
	for name, lose := range map[string]func(state, claimDir string) error{
		"claim's files": func(_, claimDir string) error { return vgpufs.Unmount(claimDir) },
		"slice's files": func(state, _ string) error { return vgpufs.Unmount(Dir(state, "small")) },
		"all files": func(state, claimDir string) error {
			return errors.Join(vgpufs.UnmountTurns(state), vgpufs.Unmount(claimDir), vgpufs.Unmount(Dir(state, "small")))
		},
		"ledger's record": func(_, claimDir string) error {
			return errors.Join(vgpufs.Unmount(claimDir), os.WriteFile(filepath.Join(claimDir, "grant.json"), []byte("{"), 0o600))
		},
		"container's record": func(_, claimDir string) error {
			return errors.Join(vgpufs.Unmount(claimDir), os.WriteFile(filepath.Join(claimDir, orphans.RecordName), []byte("{"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, state, s := context.Background(), t.TempDir(), newSlice()
			vgpufstest.Unmount(t, state)
			_, _, err := Put(ctx, state, s, oci.Settings{})
			require.NoError(t, err)
			r, _ := inUseByOne(t, state, s)
			require.NoError(t, lose(state, r.Ledger.Dir("c1")))

			require.ErrorContains(t, checkFree(ctx, r, state, s.Name), "container c1 uses it")
			inUse, err := Remove(ctx, state, s.Name)
			require.NoError(t, err)
			require.True(t, inUse)
			changed := s
			changed.Definition = "2GiB"
			_, inUse, err = Put(ctx, state, changed, oci.Settings{})
			require.NoError(t, err)
			require.True(t, inUse)
		})
	}
}

// A container keeps the files of its slice, also if some of them are lost.
func TestPutOfAnIncompleteSliceInUse(t *testing.T) {
	for name, lose := range map[string]func(state string) error{
		"turn file": func(state string) error { return os.Remove(limiter.TurnPath(state, gpu, limiter.SliceTurnID("small"))) },
		"turns":     vgpufs.UnmountTurns,
		"pattern":   func(state string) error { return os.Remove(Dir(state, "small") + "/" + patternName) },
		"files":     func(state string) error { return vgpufs.Unmount(Dir(state, "small")) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, state, s := context.Background(), t.TempDir(), newSlice()
			vgpufstest.Unmount(t, state)
			put := func() (inUse bool) {
				t.Helper()
				_, inUse, err := Put(ctx, state, s, oci.Settings{})
				require.NoError(t, err)
				return inUse
			}
			require.False(t, put())
			was, err := os.Lstat(Dir(state, s.Name))
			require.NoError(t, err)
			rebuilt := func() bool {
				t.Helper()
				is, err := os.Lstat(Dir(state, s.Name))
				require.NoError(t, err)
				return !os.SameFile(was, is)
			}
			require.False(t, put())
			require.False(t, rebuilt())

			r, record := inUseByOne(t, state, s)
			require.NoError(t, lose(state))
			require.True(t, put())
			require.False(t, rebuilt())

			record.Creator.Start++ // its process is gone
			require.NoError(t, record.Write(r.Ledger.Dir("c1")))
			require.False(t, put())
			require.True(t, rebuilt())
			require.True(t, s.complete(state))
			require.False(t, marked(Dir(state, s.Name)))
			require.NoError(t, checkFree(ctx, r, state, s.Name), "no container uses the new files")
			require.NoError(t, reserve(ctx, r, state, s, "c2", record))
		})
	}
}
