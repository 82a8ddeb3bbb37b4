package cdihook

import (
	"fmt"
	"log/slog"
	"path"
	"strings"
)

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
