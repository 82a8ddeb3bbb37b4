package cdihook

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// chmod sets the permissions of directories of device nodes, which runtimes create only for root
// (github.com/opencontainers/runc/issues/3564). It skips paths that don't exist or can't be changed.
type chmod struct {
	paths []string
	mode  string
}

func (h *chmod) flags(f *flagSet) {
	f.list(&h.paths, "path")
	f.text(&h.mode, "mode", "")
}

func (h *chmod) run(r *root, log *slog.Logger) error {
	mode, err := strconv.ParseUint(h.mode, 8, 32)
	if err != nil || mode > 0o7777 {
		return fmt.Errorf("--mode %q is not an octal mode such as 755", h.mode)
	}
	for _, name := range h.paths {
		err := chmodIn(r, name, uint32(mode))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if errors.Is(err, fs.ErrPermission) { // for example the host's /dev
			log.Warn("permissions not changed", "path", name, "error", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("change the permissions of %s: %w", name, err)
		}
	}
	return nil
}

func chmodIn(r *root, name string, mode uint32) error {
	f, err := r.open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&0o7777 == mode {
		return nil
	}
	return unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), mode, 0)
}

// createSymlinks creates links in the container, such as libcuda.so to libcuda.so.1, like ln -sf.
type createSymlinks struct{ links []string }

func (h *createSymlinks) flags(f *flagSet) {
	f.each(&h.links, "link")
}

func (h *createSymlinks) run(r *root, _ *slog.Logger) error {
	for _, link := range h.links {
		target, name, ok := strings.Cut(link, "::")
		// A link needs a last part.
		if !ok || target == "" || strings.Contains(name, "::") || strings.HasSuffix(name, "/") || path.Base(path.Clean("/"+name)) == "/" {
			return fmt.Errorf("--link %q is not TARGET::LINK", link)
		}
		if err := r.symlink(target, path.Clean("/"+name)); err != nil {
			return fmt.Errorf("create link %s to %s: %w", name, target, err)
		}
	}
	return nil
}
