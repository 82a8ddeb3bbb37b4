package cdihook

import (
	"fmt"
	"log/slog"
	"path"
	"strings"
)

// createSymlinks makes links in the container, such as libcuda.so to libcuda.so.1. What
// is at a link's place is replaced, as by ln -sf; a link that says the same stays.
type createSymlinks struct{ links []string }

func (h *createSymlinks) flags(f *flagSet) {
	f.each(&h.links, "link")
}

func (h *createSymlinks) run(r *root, _ *slog.Logger) error {
	for _, link := range h.links {
		target, name, ok := strings.Cut(link, "::")
		// A name without a last part is the root, or a directory.
		if !ok || target == "" || strings.Contains(name, "::") || strings.HasSuffix(name, "/") || path.Base(path.Clean("/"+name)) == "/" {
			return fmt.Errorf("--link %q is not TARGET::LINK", link)
		}
		if err := r.symlink(target, path.Clean("/"+name)); err != nil {
			return fmt.Errorf("link %s to %s: %w", name, target, err)
		}
	}
	return nil
}
