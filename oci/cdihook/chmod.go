package cdihook

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strconv"

	"golang.org/x/sys/unix"
)

// chmod sets the permissions of directories that device nodes are in, which runtimes make
// for root alone (github.com/opencontainers/runc/issues/3564). A path that isn't
// there, or is not ours to change, is left alone.
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
		return fmt.Errorf("--mode %q is not an octal number of permissions, such as 755", h.mode)
	}
	for _, name := range h.paths {
		err := chmodIn(r, name, uint32(mode))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if errors.Is(err, fs.ErrPermission) { // such as the host's /dev mounted whole
			log.Warn("permissions left as they are", "path", name, "error", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("permissions of %s: %w", name, err)
		}
	}
	return nil
}

// chmodIn changes what a path of the container leads to.
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
