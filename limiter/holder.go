package limiter

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Holder keeps claims' files open for writing: then no process gets a lease on them, and opening them neither waits nor
// fails. It is safe for concurrent use. The zero value is ready; a nil one holds no turn files.
type Holder struct {
	mu      sync.Mutex
	held    map[heldName]*heldFile
	waiting int
}

// A new claim's directory is renamed, so heldName has no path. id is the container's, or the turn ID with gpu.
type heldName struct {
	id    string
	usage bool
	gpu   string
}

type heldFile struct {
	file
	open, waits bool
}

const mostWaiting = 32

// Hold opens the files of a claim, and again those that were replaced. If a process has a lease, the error is ErrLeased;
// the kernel ends the lease within a minute, and the file is open then.
func (h *Holder) Hold(id, claimDir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(h.hold(heldName{id: id}, LimitsPath(claimDir)), h.hold(heldName{id: id, usage: true}, UsagePath(claimDir)))
}

func (h *Holder) hold(name heldName, path string) error {
	f := h.held[name]
	if f == nil {
		if h.held == nil {
			h.held = map[heldName]*heldFile{}
		}
		f = new(heldFile)
		h.held[name] = f
	}
	if f.open && f.same(path) {
		return nil
	}
	f.release()
	var err error
	if name.usage || name.gpu != "" {
		err = f.file.open(path, unix.O_RDWR)
	} else {
		err = f.openToWrite(path)
	}
	switch {
	case err == nil:
		f.open = true
	case errors.Is(err, fs.ErrNotExist):
		return nil // the claim was removed
	case errors.Is(err, ErrLeased) && !f.waits && h.waiting < mostWaiting:
		f.waits = true
		h.waiting++
		go h.wait(name, f, path)
	}
	return err
}

// While it waits there is no new lease.
func (h *Holder) wait(name heldName, f *heldFile, path string) {
	var opened file
	err := opened.openPatiently(path)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting--
	f.waits = false
	switch {
	case err != nil: // Hold tries again
	case f.open || h.held[name] != f:
		opened.close()
	default:
		f.file, f.open = opened, true
	}
}

func (f *heldFile) release() {
	if f.open {
		f.open = false
		f.close()
	}
}

// Follow holds the files of the claims that list returns, by container ID, and closes all others, except those that
// Hold opened while list ran.
func (h *Holder) Follow(list func() (map[string]string, error)) error {
	before := h.names()
	dirs, err := list()
	if err != nil {
		return err
	}
	for _, name := range before {
		if _, there := dirs[name.id]; !there && name.gpu == "" {
			h.release(name)
		}
	}
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(dirs)) {
		errs = append(errs, h.Hold(id, dirs[id]))
	}
	return errors.Join(errs...)
}

// FollowTurns holds the node's turn files, and closes those that are gone.
func (h *Holder) FollowTurns(stateDir string) error {
	before := h.names()
	there := map[heldName]bool{}
	var errs []error
	errs = append(errs, EachTurn(stateDir, func(gpu string, id TurnID) {
		there[turnName(gpu, id)] = true
		errs = append(errs, h.holdTurn(stateDir, gpu, id))
	}))
	for _, name := range before {
		if name.gpu != "" && !there[name] {
			h.release(name)
		}
	}
	return errors.Join(errs...)
}

func turnName(gpu string, id TurnID) heldName { return heldName{id: id.String(), gpu: gpu} }

func (h *Holder) holdTurn(stateDir, gpu string, id TurnID) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hold(turnName(gpu, id), TurnPath(stateDir, gpu, id))
}

// withTurn calls do with a turn file that is open for writing. A container can take a lease on one that is not held, and
// with a mode it can shut out an agent without CAP_DAC_OVERRIDE.
func (h *Holder) withTurn(stateDir, gpu string, id TurnID, do func(*file) error) error {
	path := TurnPath(stateDir, gpu, id)
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if f := h.held[turnName(gpu, id)]; f != nil && f.open && f.same(path) {
			return do(&f.file)
		}
	}
	var f file
	if err := f.open(path, unix.O_WRONLY); err != nil {
		return err
	}
	defer f.close()
	return do(&f)
}

func (h *Holder) Close() {
	for _, name := range h.names() {
		h.release(name)
	}
}

func (h *Holder) names() []heldName {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.held))
}

func (h *Holder) release(name heldName) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.held[name]; f != nil {
		f.release()
		delete(h.held, name)
	}
}
