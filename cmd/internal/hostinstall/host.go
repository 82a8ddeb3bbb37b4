package hostinstall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/rawfile"
	"github.com/gpuslice/gpuslice/oci"
)

type host struct {
	root string
	// readBack is os.ReadFile except in tests.
	readBack func(string) ([]byte, error)
}

func newHost(root string) (host, error) {
	root, err := filepath.EvalSymlinks(root)
	return host{root: root, readBack: os.ReadFile}, err
}

// real converts a path of the host to one of this process. Symbolic links can't leave the root, and must not be dangling.
func (h host) real(path string) (string, error) {
	dir, err := securejoin.SecureJoin(h.root, filepath.Dir(path))
	if err != nil {
		return "", err
	}
	real, err := securejoin.SecureJoin(h.root, path)
	if err != nil {
		return "", err
	}
	if link := filepath.Join(dir, filepath.Base(path)); link != real {
		if _, err := os.Stat(real); err != nil {
			return "", fmt.Errorf("follow the link %s: %w", path, err)
		}
	}
	return real, nil
}

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
	return os.ReadFile(real)
}

// commit writes a backup, then replaces the file. After an error, the file has its old content.
func (h host) commit(e edit) (backup string, err error) {
	real, err := h.real(e.path)
	if err != nil {
		return "", err
	}
	if err := h.unchanged(e); err != nil {
		return "", err
	}
	if e.before != nil && !e.noBackup {
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
		return backup, errors.Join(fmt.Errorf("%s has other content than was written: the old content was restored", e.path), err, h.restore(real, e))
	}
	return backup, nil
}

func backupOf(path string, content []byte) string {
	return path + ".gpuslice-backup-" + sum(content)[:12]
}

// inside converts a path of this process to one of the host.
func (h host) inside(real string) string {
	return "/" + strings.TrimPrefix(strings.TrimPrefix(real, h.root), "/")
}

const lockWait = 30 * time.Second

func (h host) lock(dir string) (*os.File, error) {
	real, err := h.real(dir)
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

// unchanged fails if another program wrote the file since it was read.
func (h host) unchanged(e edit) error {
	now, err := h.read(e.path)
	if err == nil && ((now == nil) != (e.before == nil) || !bytes.Equal(now, e.before)) {
		err = fmt.Errorf("%s was changed by another program: try again", e.path)
	}
	return err
}

func (h host) restore(real string, e edit) error {
	if e.before == nil {
		return os.Remove(real)
	}
	return replace(real, e.before, real)
}

// replace replaces a file by a rename. It copies mode, owner and attributes of a model.
func replace(path string, data []byte, model string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write a new %s: %w", path, unlink(err))
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err == nil {
		err = lookAlike(f, model)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write a new %s: %w", path, unlink(err))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("replace %s (is it a mount point?): %w", path, unlink(err))
	}
	return syncDir(filepath.Dir(path))
}

func unlink(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	if l := (*os.LinkError)(nil); errors.As(err, &l) {
		return l.Err
	}
	return err
}

// lookAlike copies mode, owner and extended attributes (SELinux label, ACLs) from another file.
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
	names := make([]byte, 64<<10) // kernel's limit
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

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Files in From. gpuslice-runtime runs the gpuslice in its own directory.
const (
	runtimeProgram = "gpuslice-runtime"
	cliProgram     = "gpuslice"
	library        = "libvgpu.so"
	probeProgram   = "gpuslice-probe"
)

// programs installs the programs, if From is set, and the limiter's libraries.
func (j *job) programs() error {
	if j.From == "" {
		if err := j.isProgram(j.RuntimePath); err != nil {
			return err
		}
		return j.libraries(j.Library)
	}
	for name, path := range j.copied() {
		source, err := firstOf(j.From, name, ".", "bin")
		if err != nil {
			return err
		}
		if err := j.program(source, path); err != nil {
			return fmt.Errorf("copy %s to %s: %w%s", source, path, err, hint(err))
		}
	}
	source, err := firstOf(j.From, library, ".", "lib/gpuslice", "lib")
	if err != nil {
		return err
	}
	if err := j.libraries(source); err != nil {
		return err
	}
	// For gpuslice verify; releases before it have none.
	probe := filepath.Join(filepath.Dir(source), probeProgram)
	if _, err := os.Stat(probe); err != nil {
		return nil
	}
	return j.program(probe, filepath.Join(j.LibraryDir, probeProgram))
}

func (j *job) isProgram(path string) error {
	real, err := j.host.real(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(real)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not a program on this host: install it, set --runtime-path to its path, or copy it with --from", path)
	}
	return nil
}

func (j *job) program(source, path string) error {
	data, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	have, err := j.host.read(path)
	if err != nil || bytes.Equal(have, data) {
		return err
	}
	if j.DryRun {
		fmt.Fprintf(j.out, "would copy %s to %s\n", source, path)
		return nil
	}
	real, err := j.host.real(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(real), 0o755); err != nil {
		return err
	}
	if err := atomicfile.WriteSync(real, data, 0o755); err != nil {
		return err
	}
	fmt.Fprintf(j.out, "installed  %s\n", path)
	return nil
}

// libraries installs the limiter's libraries, with a hash in the name.
func (j *job) libraries(source string) error {
	dir, err := j.host.real(j.LibraryDir)
	if err != nil {
		return err
	}
	before, err := filepath.Glob(filepath.Join(dir, "libvgpu-*.so"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(source); err != nil && j.From == "" && len(before) > 0 {
		return nil // they are installed
	}
	if j.DryRun {
		fmt.Fprintf(j.out, "would install %s into %s\n", source, j.LibraryDir)
		return nil
	}
	lib, _, err := oci.InstallLibrary(source, dir)
	if err != nil {
		return fmt.Errorf("%w%s", err, hint(err))
	}
	fronts, err := oci.InstallStubs(source, dir)
	if err != nil {
		return fmt.Errorf("%w%s", err, hint(err))
	}
	for _, l := range []string{lib, fronts.CUDA, fronts.NVML} {
		if !slices.Contains(before, l) {
			fmt.Fprintf(j.out, "installed  %s\n", j.host.inside(l))
		}
	}
	return nil
}

func firstOf(dir, name string, subs ...string) (string, error) {
	var tried []string
	for _, sub := range subs {
		p := filepath.Join(dir, sub, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() {
			return p, nil
		}
		tried = append(tried, p)
	}
	return "", fmt.Errorf("%s not found: set --from to the directory that `make build` creates, or to an unpacked release", strings.Join(tried, ", "))
}
