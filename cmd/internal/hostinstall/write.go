package hostinstall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// host writes files of a host whose root directory is somewhere.
type host struct {
	root string
	// readBack reads what was written; os.ReadFile but in tests.
	readBack func(string) ([]byte, error)
}

func newHost(root string) (host, error) {
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return host{}, err
	}
	return host{root: root, readBack: os.ReadFile}, nil
}

// real is the path of a file as this process has it, symbolic links followed, which
// lead nowhere but below the root. The file itself may be missing.
func (h host) real(path string) (string, error) {
	dir, err := h.realDir(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	plain := filepath.Join(dir, filepath.Base(path))
	if info, err := os.Lstat(plain); errors.Is(err, fs.ErrNotExist) {
		return plain, nil
	} else if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return plain, err
	}
	found, err := h.find(path)
	if err != nil {
		return "", fmt.Errorf("follow the link %s: %w", path, err)
	}
	return found, nil
}

// realDir is the path of a directory, of which the last parts may be missing.
func (h host) realDir(dir string) (string, error) {
	found, err := h.find(dir)
	if !errors.Is(err, fs.ErrNotExist) || dir == "/" {
		return found, err
	}
	parent, err := h.realDir(filepath.Dir(dir))
	if err != nil {
		return "", err
	}
	plain := filepath.Join(parent, filepath.Base(dir))
	info, err := os.Lstat(plain)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return plain, nil
	case err != nil:
		return "", err
	case info.Mode()&fs.ModeSymlink != 0: // it is there, and leads to nothing
		return "", fmt.Errorf("%s is a link to nowhere", dir)
	default: // somebody has made it meanwhile
		return h.find(dir)
	}
}

// find resolves a path that is there.
func (h host) find(path string) (string, error) {
	root, err := os.OpenFile(h.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer root.Close()
	name := strings.Trim(filepath.Clean(path), "/")
	if name == "" {
		return h.root, nil
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	fd, err := unix.Openat2(int(root.Fd()), name, &how)
	if err == unix.ENOSYS && h.root == "/" { // Linux before 5.6
		return filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// read reads a file; nil if it isn't there.
func (h host) read(path string) ([]byte, error) {
	real, err := h.real(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(real)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	data, err := os.ReadFile(real)
	if data == nil {
		data = []byte{}
	}
	return data, err
}

// commit makes an edit true: a backup, a new file beside, a rename. It returns the
// backup's path. Whatever fails, the file is what it was.
func (h host) commit(e edit) (backup string, err error) {
	real, err := h.real(e.path)
	if err != nil {
		return "", err
	}
	if err := h.unchanged(e); err != nil {
		return "", err
	}
	if e.before != nil && !e.isOurs {
		backup = backupOf(real, e.before)
		if have, err := os.ReadFile(backup); err != nil || !bytes.Equal(have, e.before) {
			if err := replace(backup, e.before, real); err != nil {
				return "", fmt.Errorf("keep a backup of %s: %w", e.path, err)
			}
		}
		backup = h.inside(backup)
	}
	if e.after == nil {
		return backup, errors.Join(os.Remove(real), syncDir(filepath.Dir(real)))
	}
	if err := os.MkdirAll(filepath.Dir(real), 0o755); err != nil {
		return backup, err
	}
	if err := replace(real, e.after, real); err != nil {
		return backup, err
	}
	if have, err := h.readBack(real); err != nil || !bytes.Equal(have, e.after) {
		return backup, errors.Join(fmt.Errorf("%s reads back as something else than was written: it is put back as it was", e.path), err, h.restore(real, e))
	}
	return backup, nil
}

// backupOf is where a file with that content is kept.
func backupOf(path string, content []byte) string {
	return path + ".gpuslice-backup-" + sum(content)[:12]
}

// inside is a real path as the host has it.
func (h host) inside(real string) string {
	return "/" + strings.TrimPrefix(strings.TrimPrefix(real, h.root), "/")
}

// lockWait is more than an installation takes.
const lockWait = 30 * time.Second

// lock creates a directory and locks it, when no other process holds the lock.
func (h host) lock(dir string) (*os.File, error) {
	real, err := h.realDir(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(real, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Open(real)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	if err := rawfile.Lock(ctx, int(f.Fd())); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", real, err), f.Close())
	}
	return f, nil
}

// unchanged refuses to write over what somebody else has just written.
func (h host) unchanged(e edit) error {
	now, err := h.read(e.path)
	if err == nil && ((now == nil) != (e.before == nil) || !bytes.Equal(now, e.before)) {
		err = fmt.Errorf("%s was changed by somebody else meanwhile: try again", e.path)
	}
	return err
}

func (h host) restore(real string, e edit) error {
	if e.before == nil {
		return os.Remove(real)
	}
	return replace(real, e.before, real)
}

// replace writes a file with the mode, owner and attributes of a model, if there is one.
func replace(path string, data []byte, model string) error {
	return renamed(path, data, func(f *os.File) error { return lookAlike(f, model) })
}

// place writes a file of that mode.
func place(path string, data []byte, mode fs.FileMode) error {
	return renamed(path, data, func(f *os.File) error { return f.Chmod(mode) })
}

// renamed writes a file beside a path, and renames it into place once it is on the disk.
func renamed(path string, data []byte, finish func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write beside %s: %w", path, unlink(err))
	}
	defer os.Remove(f.Name()) // gone already once renamed
	_, err = f.Write(data)
	if err == nil {
		err = finish(f)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write beside %s: %w", path, unlink(err))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("put the new file in the place of %s (is it a mount of its own?): %w", path, unlink(err))
	}
	return syncDir(filepath.Dir(path))
}

// unlink leaves out the temporary file's name, which says nothing to people.
func unlink(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	if l := (*os.LinkError)(nil); errors.As(err, &l) {
		return l.Err
	}
	return err
}

// lookAlike gives a new file the mode, owner and extended attributes (a label of
// SELinux, ACLs) of another one.
func lookAlike(f *os.File, model string) error {
	var st unix.Stat_t
	if err := unix.Lstat(model, &st); err == unix.ENOENT {
		return f.Chmod(0o644)
	} else if err != nil {
		return err
	}
	if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := copyAttributes(f, model); err != nil {
		return err
	}
	return f.Chmod(fs.FileMode(st.Mode & 0o7777).Perm())
}

func copyAttributes(f *os.File, model string) error {
	names := make([]byte, 64<<10) // the kernel's limit
	n, err := unix.Llistxattr(model, names)
	if err == unix.ENOTSUP {
		return nil
	}
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(model, name, value)
		if err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
		if err := unix.Fsetxattr(int(f.Fd()), name, value[:n], 0); err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return nil
}

// syncDir makes a rename last over a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
