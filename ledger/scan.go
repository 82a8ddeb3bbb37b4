package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/rawfile"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
)

const (
	recordName   = "grant.json"
	releasedName = "released.json"
	newPrefix    = ".new-"
	oldPrefix    = ".old-"
)

// stamp identifies a version of grant.json without reading it: another content is another inode.
type stamp struct {
	inode   uint64
	seconds int64
	nanos   int64
	size    int64
}

func readStamp(at int, path string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(at, path, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return stamp{}, err
	}
	return stamp{inode: st.Ino, seconds: int64(st.Mtim.Sec), nanos: int64(st.Mtim.Nsec), size: st.Size}, nil
}

func (l *Ledger) hidden(prefix, id string) string {
	return filepath.Join(l.dir, containersName, prefix+id)
}

// scan updates the index. With repair it also removes what an interrupted change left.
func (l *Ledger) scan(repair bool) error {
	containers, err := rawfile.OpenFile(filepath.Join(l.dir, containersName), os.O_RDONLY, 0)
	if errors.Is(err, unix.ENOENT) && !l.readOnly { // it was removed
		if err = makeDirectories(l.dir); err == nil {
			containers, err = rawfile.OpenFile(filepath.Join(l.dir, containersName), os.O_RDONLY, 0)
		}
	}
	if err != nil {
		return fmt.Errorf("read the ledger's directories: %w", err)
	}
	defer containers.Close()
	names, err := containers.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("read the ledger's directories: %w", err)
	}
	found := make(map[string]bool, len(names))
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			if repair {
				_ = vgpufs.RemoveAll(filepath.Join(l.dir, containersName, name)) // it counts for nothing
			}
			continue
		}
		if ValidateContainerID(name) != nil {
			continue // no container has such an id
		}
		if l.scanDir(int(containers.Fd()), name) {
			found[name] = true
		}
	}
	for id := range l.index.entries {
		if !found[id] {
			l.index.drop(id)
		}
	}
	for _, old := range l.index.superseded() {
		if repair {
			_ = l.markReleased(old.ContainerID) // as in supersede
		}
		l.index.release(old)
	}
	return nil
}

func (l *Ledger) scanDir(containers int, id string) bool {
	known := l.index.entries[id]
	now, err := readStamp(containers, id+"/"+recordName)
	if known != nil && known.problem == nil {
		if err == nil && now == known.stamp {
			return true
		}
		if err != nil && known.state == StateReleased {
			if _, err := readStamp(containers, id+"/"+releasedName); err == nil {
				return true
			}
		}
	}
	e := l.load(id, known)
	if e == nil {
		return false
	}
	if e.problem == nil && e.counts() && err == nil {
		e.stamp = now
	}
	l.index.put(e)
	return true
}

func (l *Ledger) load(id string, known *entry) *entry {
	r, err := l.readRecord(id, recordName)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		if _, gone := readStamp(unix.AT_FDCWD, filepath.Join(l.Dir(id), releasedName)); gone == nil {
			return l.loadReleased(id)
		}
		if l.clearEmpty(id) {
			return nil
		}
	}
	if err == nil {
		return newEntry(r)
	}
	return l.loadDamaged(id, known, err)
}

func (l *Ledger) readRecord(id, name string) (r *record, err error) {
	data, err := rawfile.Read(filepath.Join(l.Dir(id), name))
	if err == nil {
		r, err = decodeRecord(data, id)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of container %s: %w", name, id, err)
	}
	return r, nil
}

// clearEmpty returns whether a directory without a record is no container's. Some runtimes make a missing
// source of a mount: such an empty directory is removed.
func (l *Ledger) clearEmpty(id string) bool {
	var err error
	if l.readOnly {
		var names []os.DirEntry
		if names, err = os.ReadDir(l.Dir(id)); len(names) > 0 {
			return false
		}
	} else {
		err = unix.Rmdir(l.Dir(id))
	}
	return err == nil || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOENT)
}

// loadReleased reads a released record. It does not count, so damage is only a problem of the entry.
func (l *Ledger) loadReleased(id string) *entry {
	r, err := l.readRecord(id, releasedName)
	if err == nil {
		return &entry{record: *r, state: StateReleased}
	}
	return &entry{record: record{Claim: Claim{ContainerID: id}}, state: StateReleased, problem: err}
}

// loadDamaged makes the entry of an unreadable record from the index, from WithRecovery, or with unknown
// shares. Its container can be running.
func (l *Ledger) loadDamaged(id string, known *entry, problem error) *entry {
	if known != nil && known.counts() {
		e := &entry{record: known.record, state: known.state}
		if err := l.replaceRecord(&known.record); err != nil {
			e.problem = fmt.Errorf("%w; write it again: %w", problem, err)
		}
		return e
	}
	return l.corrupt(id, problem)
}

func (l *Ledger) corrupt(id string, problem error) *entry {
	e := &entry{record: record{Claim: Claim{ContainerID: id}}, state: StateCorrupt, problem: problem}
	if l.recover == nil {
		return e
	}
	claim, err := l.recover(l.Dir(id))
	if err == nil {
		err = grant.ValidateShares(claim.Shares)
	}
	if err != nil {
		e.problem = fmt.Errorf("%w; recover its shares: %w", problem, err)
		return e
	}
	claim.ContainerID = id
	e.Claim = claim
	return e
}

func (l *Ledger) markReleased(id string) error {
	from, to := filepath.Join(l.Dir(id), recordName), filepath.Join(l.Dir(id), releasedName)
	err := unix.Rename(from, to)
	if errors.Is(err, unix.ENOENT) {
		err = os.WriteFile(to, nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("mark container %s as released: %w", id, err)
	}
	return nil
}

// replaceRecord replaces grant.json. Not by atomicfile: the tmpfs needs no sync, and a fixed name leaves no
// files after a kill.
func (l *Ledger) replaceRecord(r *record) error {
	dir := l.Dir(r.ContainerID)
	next := filepath.Join(dir, "."+recordName)
	if err := os.RemoveAll(next); err != nil {
		return fmt.Errorf("write %s of container %s: %w", recordName, r.ContainerID, err)
	}
	if err := writeRecord(next, r); err != nil {
		_ = os.Remove(next) // the first error is returned
		return err
	}
	path := filepath.Join(dir, recordName)
	err := unix.Rename(next, path)
	if errors.Is(err, unix.EISDIR) {
		if err = os.RemoveAll(path); err == nil {
			err = unix.Rename(next, path)
		}
	}
	if err != nil {
		return fmt.Errorf("write %s of container %s: %w", recordName, r.ContainerID, err)
	}
	return nil
}

func writeRecord(path string, r *record) error {
	data, err := r.encode()
	if err != nil {
		return err
	}
	file, err := rawfile.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write the claim: %w", err)
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write the claim: %w", err)
	}
	return nil
}

func makeDir(path string) error {
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, os.ErrExist) {
		if err = vgpufs.RemoveAll(path); err == nil {
			err = os.Mkdir(path, 0o755)
		}
	}
	if err != nil {
		return fmt.Errorf("create the container's directory: %w", err)
	}
	return nil
}
