package limiter

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCheckUsage(t *testing.T) {
	gpus := []string{"GPU-0a000000-1111-2222-3333-444455556666", "MIG-0a000000-1111-2222-3333-444455556667"}
	write := func(at int64, data []byte) func(string) error {
		return func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt(data, at)
			return err
		}
	}
	le := binary.LittleEndian
	for name, test := range map[string]struct {
		spoil func(path string) error
		gpus  []string
		want  string
	}{
		"as it was made":      {func(string) error { return nil }, gpus, ""},
		"of a GPU in capital": {func(string) error { return nil }, []string{"GPU-0A000000-1111-2222-3333-444455556666", gpus[1]}, ""},
		"of other GPUs":       {func(string) error { return nil }, []string{gpus[1], gpus[0]}, "header uuid 0 is not that of MIG-0a"},
		"of fewer GPUs":       {func(string) error { return nil }, gpus[:1], "header device_count is 2, not 1"},
		"text":                {func(path string) error { return os.WriteFile(path, []byte("x"), 0) }, gpus, "its size is 1 bytes, not 1314816"},
		"cut short":           {func(path string) error { return os.Truncate(path, 4096) }, gpus, "its size is 4096 bytes"},
		"cut and grown again": {func(path string) error { return os.WriteFile(path, make([]byte, usageSize), 0) }, gpus, "magic number"},
		"made longer":         {func(path string) error { return os.Truncate(path, 1<<40) }, gpus, "its size is 1099511627776 bytes"},
		"another layout":      {write(int64(usageOffLayout), []byte{9}), gpus, "it is GPUSUSE1 of layout 9"},
		"another GPU":         {write(int64(usageOffUUID), []byte{1}), gpus, "header uuid 0 is not that of GPU-0a"},
		"a GPU for a MIG one": {write(int64(usageOffMIG), []byte{0}), gpus, "header uuid 1 is not that of MIG-0a"},
		"the largest number": {func(path string) error {
			slot := make([]byte, usageSlotSize)
			le.PutUint32(slot, 7)
			le.PutUint64(slot[usageCellOffset:], math.MaxUint64)
			if err := write(int64(usageOffHighWater), []byte{1})(path); err != nil {
				return err
			}
			return write(int64(usageHeaderSize), slot)(path)
		}, gpus, "18446744073709551615 bytes in use, more than possible"},
		"a high-water mark beyond the end": {write(int64(usageOffHighWater), []byte{255, 255, 255, 255}), gpus, ""},
		"a link": {func(path string) error {
			if err := os.Rename(path, path+"2"); err != nil {
				return err
			}
			return os.Symlink(path+"2", path)
		}, gpus, "too many levels"},
		"gone": {os.Remove, gpus, "no such file"},
	} {
		path := filepath.Join(t.TempDir(), "usage")
		require.NoError(t, CreateUsage(path, gpus))
		require.NoError(t, test.spoil(path), name)
		err := CheckUsage(path, test.gpus)
		if test.want == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, test.want, name)
		}
	}
}
