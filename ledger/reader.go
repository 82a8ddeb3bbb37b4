package ledger

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// Reader reads a ledger without changes and without the lock, also on a read-only mount.
type Reader struct {
	dir     string
	options []Option
}

func OpenReadOnly(dir string, options ...Option) (*Reader, error) {
	dirs, err := os.OpenFile(filepath.Join(dir, containersName), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("read ledger %s: %w: has gpuslice-agent run on this node?", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read ledger %s: %w", dir, err)
	}
	return &Reader{dir: dir, options: options}, dirs.Close()
}

// Read reads the ledger in dir once. Without a ledger the result is empty.
func Read(ctx context.Context, dir string) (*Snapshot, error) {
	r, err := OpenReadOnly(dir)
	if errors.Is(err, unix.ENOENT) {
		return &Snapshot{}, nil
	}
	if err != nil {
		return nil, err
	}
	return r.Snapshot(ctx)
}

// Dir returns the path of a container's directory.
func (r *Reader) Dir(id string) string { return DirOf(r.dir, id) }

const (
	readTries = 50
	readPause = 2 * time.Millisecond
)

// Snapshot reads the ledger. The generation is a sequence lock: if it is even and the same before and after,
// there was no change. Otherwise, after all tries, the snapshot is Unsettled.
func (r *Reader) Snapshot(ctx context.Context) (*Snapshot, error) {
	for try := 1; ; try++ {
		snapshot, err := r.look(try == readTries)
		if err == nil && (try == readTries || snapshot != nil) {
			return snapshot, nil
		}
		if err == nil && !periodic.Sleep(ctx, readPause) {
			err = context.Cause(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("read ledger %s: %w", r.dir, err)
		}
	}
}

// look reads the ledger once. If it changed meanwhile, the result is nil or, with allowUnsettled, unsettled.
func (r *Reader) look(allowUnsettled bool) (*Snapshot, error) {
	before, err := r.generation()
	if err != nil || before%2 == 1 && !allowUnsettled {
		return nil, err
	}
	l := &Ledger{dir: r.dir, index: newIndex()}
	for _, option := range r.options {
		option(l)
	}
	l.readOnly = true
	if err := l.scan(false); err != nil {
		return nil, err
	}
	after, err := r.generation()
	if err != nil {
		return nil, err
	}
	unsettled := before != after || before%2 == 1
	if unsettled && !allowUnsettled {
		return nil, nil
	}
	snapshot := l.index.snapshot()
	snapshot.Unsettled = unsettled
	return snapshot, nil
}

// generation reads the counter; 0 if there is none.
func (r *Reader) generation() (uint64, error) {
	data, err := rawfile.Read(filepath.Join(r.dir, generationName))
	switch {
	case errors.Is(err, unix.ENOENT), err == nil && len(data) == 0:
		return 0, nil
	case err != nil:
		return 0, err
	case len(data) != 8:
		return 1, nil // cut short: see ledgerFiles.generation
	}
	return binary.LittleEndian.Uint64(data), nil
}
