package limiter

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
)

// TurnID names a container in the tables and in turn files. 0: it has no turns.
type TurnID uint64

const (
	// sliceTurns is set in the IDs of slices. Their files exist before a container.
	sliceTurns TurnID = 1 << 63
	// nonceTurns is set in IDs with a nonce.
	nonceTurns TurnID = 1 << 62
)

// TurnIDOf returns the turn ID of a container. nonce distinguishes containers with the same ID; a container without one
// can have a lost claim restored.
func TurnIDOf(containerID, nonce string) TurnID {
	id := hashed(containerID+"\x00"+nonce) &^ (sliceTurns | nonceTurns)
	if nonce != "" {
		id |= nonceTurns
	}
	return max(id, 1)
}

// SliceTurnID returns the turn ID of a slice, and of the container that uses it.
func SliceTurnID(name string) TurnID { return hashed(name) | sliceTurns }

func hashed(text string) TurnID {
	sum := sha256.Sum256([]byte(text))
	return TurnID(binary.LittleEndian.Uint64(sum[:]))
}

// OfSlice reports whether the files are a slice's, and not made and removed with a claim.
func (id TurnID) OfSlice() bool { return id&sliceTurns != 0 }

// Restorable reports whether a container without a claim can still use the files: Ledger.Restore reuses them.
func (id TurnID) Restorable() bool { return id&(sliceTurns|nonceTurns) == 0 }

// String is the name of the container's turn files.
func (id TurnID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

func (id TurnID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

func (id *TurnID) UnmarshalText(text []byte) (err error) {
	*id, err = parseTurnID(string(text))
	return err
}

func parseTurnID(text string) (TurnID, error) {
	number, err := strconv.ParseUint(text, 16, 64)
	if err != nil || len(text) != 16 {
		return 0, fmt.Errorf("turn ID %q is not 16 hexadecimal digits", text)
	}
	return TurnID(number), nil
}

const (
	tableName = "table"

	tableBytes = int64(unsafe.Sizeof(tableFile{}))
	turnBytes  = int64(unsafe.Sizeof(turnFile{}))
	// Peers read only these.
	turnWordsBytes = 128
)

// TurnsDirOf has the table and the turn files of a GPU. Containers mount it read-only.
func TurnsDirOf(stateDir, gpu string) string {
	return filepath.Join(vgpufs.TurnsDir(stateDir), gpu)
}

func TablePath(stateDir, gpu string) string {
	return filepath.Join(TurnsDirOf(stateDir, gpu), tableName)
}

// TurnPath is the file that a container with turns on the GPU mounts for writing.
func TurnPath(stateDir, gpu string, id TurnID) string {
	return filepath.Join(TurnsDirOf(stateDir, gpu), id.String())
}

// CreateTurns makes a container's turn files on its GPUs, and the GPUs' tables if they are missing. With fresh it replaces
// files, which a container may have open.
func CreateTurns(stateDir string, gpus []string, id TurnID, fresh bool) error {
	return (*Holder)(nil).CreateTurns(stateDir, gpus, id, fresh)
}

// CreateTurns also holds the files, before a process of the container can take a lease.
func (h *Holder) CreateTurns(stateDir string, gpus []string, id TurnID, fresh bool) error {
	if len(gpus) == 0 {
		return nil
	}
	const pages = int(tableBytes+turnBytes) / 4096
	made := 0
	create := func() error {
		return vgpufs.WithRoom(stateDir, len(gpus)*pages, func() error { return h.cutTurns(stateDir, nil) }, func() error {
			for ; made < len(gpus); made++ {
				if err := h.createTurn(stateDir, gpus[made], id, fresh); err != nil {
					return fmt.Errorf("create the turn file of GPU %s: %w", gpus[made], err)
				}
				_ = h.holdTurn(stateDir, gpus[made], id) // FollowTurns tries again
			}
			return nil
		})
	}
	err := create()
	if errors.Is(err, fs.ErrNotExist) {
		if err = mkdir(vgpufs.TurnsDir(stateDir)); err == nil {
			err = create()
		}
	}
	return err
}

func mkdir(path string) error {
	if err := unix.Mkdir(path, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	return nil
}

func (h *Holder) createTurn(stateDir, gpu string, id TurnID, fresh bool) error {
	path := TurnPath(stateDir, gpu, id)
	content := turnFile{id: uint64(id)}
	copy(content.magic[:], turnMagic)
	create := func() error { return createFile(path, 0o666, bytesOf(&content)) }
	err := create()
	switch {
	case errors.Is(err, fs.ErrNotExist): // the first on this GPU
		if err = createTable(stateDir, gpu); err == nil {
			err = create()
		}
	case errors.Is(err, fs.ErrExist) && !fresh:
		return nil
	case errors.Is(err, fs.ErrExist):
		h.removeTurn(stateDir, gpu, id)
		err = create()
	}
	return err
}

// removeTurn also makes the file invalid for those that have it open.
func (h *Holder) removeTurn(stateDir, gpu string, id TurnID) {
	_ = h.withTurn(stateDir, gpu, id, func(f *file) error { return f.writeAt(make([]byte, 16), 0) })
	_ = unix.Unlink(TurnPath(stateDir, gpu, id))
	h.release(turnName(gpu, id))
}

// RemoveTurns removes a container's turn files.
func RemoveTurns(stateDir string, gpus []string, id TurnID) error {
	return (*Holder)(nil).RemoveTurns(stateDir, gpus, id)
}

// RemoveTurns also closes the files.
func (h *Holder) RemoveTurns(stateDir string, gpus []string, id TurnID) error {
	for _, gpu := range gpus {
		h.removeTurn(stateDir, gpu, id)
	}
	if len(gpus) == 0 {
		return nil
	}
	return h.TrimTurns(stateDir, nil)
}

// TrimTurns restores turn files that containers have changed, because a longer one can fill the node's memory, and leaves
// no free space. It calls changed, which can be nil, for each of them, with the error if it could not be restored.
func (h *Holder) TrimTurns(stateDir string, changed func(gpu string, id TurnID, err error)) error {
	err := vgpufs.WithRoom(stateDir, 0, func() error { return h.cutTurns(stateDir, changed) }, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // without turns there is nothing to do
	}
	return err
}

// cutTurns looks only if there are more pages than files, or to report.
func (h *Holder) cutTurns(stateDir string, report func(gpu string, id TurnID, err error)) error {
	if report == nil && pagesFit(vgpufs.TurnsDir(stateDir)) {
		return nil
	}
	return EachTurn(stateDir, func(gpu string, id TurnID) {
		changed, err := h.cutTurn(stateDir, gpu, id)
		if changed && report != nil {
			report(gpu, id, err)
		}
	})
}

// pagesFit: each GPU has a directory and a table, and all other inodes but the root are turn files.
func pagesFit(dir string) bool {
	var st unix.Stat_t
	var of unix.Statfs_t
	if unix.Lstat(dir, &st) != nil || unix.Statfs(dir, &of) != nil || of.Bsize <= 0 {
		return false
	}
	inodes, gpus, page := of.Files-of.Ffree, uint64(st.Nlink)-2, uint64(of.Bsize)
	if inodes < 1+2*gpus {
		return false
	}
	tablePages := (uint64(tableBytes) + page - 1) / page
	return of.Blocks-of.Bfree <= gpus*tablePages+(inodes-1-2*gpus)
}

// cutTurn restores the size, and removes attributes. It does not wait for a lease.
func (h *Holder) cutTurn(stateDir, gpu string, id TurnID) (changed bool, err error) {
	path := TurnPath(stateDir, gpu, id)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return false, nil // it was removed
	}
	attributes, err := userAttributes(path)
	for _, name := range attributes {
		err = errors.Join(err, unix.Lremovexattr(path, name))
	}
	if st.Size != turnBytes {
		err = errors.Join(err, h.withTurn(stateDir, gpu, id, func(f *file) error { return unix.Ftruncate(f.fd, turnBytes) }))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return st.Size != turnBytes || len(attributes) > 0 || err != nil, err
}

// userAttributes take inodes of the file system (since Linux 6.6).
func userAttributes(path string) (names []string, err error) {
	n, err := unix.Llistxattr(path, nil)
	if err == nil && n == 0 || errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list := make([]byte, 64<<10) // as many as there can be
	if n, err = unix.Llistxattr(path, list); err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if strings.HasPrefix(name, "user.") {
			names = append(names, name)
		}
	}
	return names, nil
}

// EachTurn calls do for each turn file of the node.
func EachTurn(stateDir string, do func(gpu string, id TurnID)) error {
	gpus, err := TurnGPUs(stateDir)
	if err != nil {
		return err
	}
	for _, gpu := range gpus {
		files, err := names(TurnsDirOf(stateDir, gpu))
		if err != nil {
			return err
		}
		for _, name := range files {
			if id, err := parseTurnID(name); err == nil {
				do(gpu, id)
			}
		}
	}
	return nil
}

// TurnGPUs returns the GPUs that have a table.
func TurnGPUs(stateDir string) ([]string, error) {
	gpus, err := names(vgpufs.TurnsDir(stateDir))
	return slices.DeleteFunc(gpus, func(name string) bool { return strings.HasPrefix(name, newTable) }), err
}

func names(path string) (names []string, err error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// Turn is what a container publishes for its peers on a GPU. Its processes can write anything. Times are CLOCK_MONOTONIC in
// nanoseconds.
type Turn struct {
	WantUntil, HoldUntil, Busy, Looked, WorkUntil uint64
	// Lag is the time that the container should have had and did not.
	Lag int64
	// Credit is time that kernels of others took from it, which nothing could end.
	Credit int64
}

// Now is the time of turns: CLOCK_MONOTONIC in nanoseconds.
func Now() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // no kernel is without it
	}
	return uint64(now.Nano())
}

var ErrTurn = errors.New("not a turn file")

// ReadTurn reads a container's turn file.
func ReadTurn(stateDir, gpu string, id TurnID) (Turn, error) {
	var f file
	path := TurnPath(stateDir, gpu, id)
	if err := f.open(path, unix.O_RDONLY); err != nil {
		return Turn{}, fmt.Errorf("read turn: %w", err)
	}
	defer f.close()
	var is turnFile
	_, err := f.ReadAt(bytesOf(&is)[:turnWordsBytes], 0)
	if err == nil && (string(is.magic[:]) != turnMagic || is.id != uint64(id)) {
		err = fmt.Errorf("%w of %s", ErrTurn, id)
	}
	if err != nil {
		return Turn{}, fmt.Errorf("read turn %s: %w", path, err)
	}
	return Turn{WantUntil: is.wantUntil, HoldUntil: is.holdUntil, Busy: is.busy, Looked: is.looked, WorkUntil: is.workUntil, Lag: is.lag, Credit: is.credit}, nil
}
