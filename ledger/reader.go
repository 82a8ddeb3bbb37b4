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

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// Reader reads a ledger and changes nothing: it makes no file, repairs nothing,
// and takes no lock, so that a reader that is suspended keeps nobody waiting. It
// works on a read-only mount.
type Reader struct {
	dir     string
	options []Option
}

// OpenReadOnly opens the ledger in dir, which must be there, to be read only.
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

// Directory is where the container's files are, whether it has any or not.
func (r *Reader) Dir(id string) string { return filepath.Join(r.dir, containersName, id) }

// A reader that meets a change looks again after readPause, at most readTries times.
const (
	readTries = 50
	readPause = 2 * time.Millisecond
)

// Snapshot reads the ledger. The generation is its sequence lock: if it is even
// and the same before and after the reading, nothing was changed meanwhile. If that
// can't be had, somebody changes the ledger all the time or was killed in the
// middle, and the snapshot is Unsettled.
func (r *Reader) Snapshot(ctx context.Context) (*Snapshot, error) {
	for try := 1; ; try++ {
		snapshot, err := r.look(try == readTries)
		if err == nil && (try == readTries || snapshot != nil) {
			return snapshot, nil
		}
		if err == nil {
			err = sleep(ctx, readPause)
		}
		if err != nil {
			return nil, fmt.Errorf("read ledger %s: %w", r.dir, err)
		}
	}
}

// sleep waits, or gives up when the context ends.
func sleep(ctx context.Context, pause time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pause):
		return nil
	}
}

// look reads the ledger once. If it was changed meanwhile, the answer is nil, or
// with anyhow a snapshot that is unsettled.
func (r *Reader) look(anyhow bool) (*Snapshot, error) {
	before, err := r.generation()
	if err != nil || before%2 == 1 && !anyhow {
		return nil, err
	}
	l := &Ledger{dir: r.dir, index: newIndex(), damage: func(error) {}}
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
	if unsettled && !anyhow {
		return nil, nil
	}
	snapshot := l.index.snapshot()
	snapshot.Unsettled = unsettled
	return snapshot, nil
}

// generation reads the counter, which is 0 as long as there is none.
func (r *Reader) generation() (uint64, error) {
	data, err := rawfile.Read(filepath.Join(r.dir, generationName))
	switch {
	case errors.Is(err, unix.ENOENT), err == nil && len(data) == 0:
		return 0, nil
	case err != nil:
		return 0, err
	case len(data) != 8:
		return 1, nil // cut short: as ledgerFiles.generation says
	}
	return binary.LittleEndian.Uint64(data), nil
}
