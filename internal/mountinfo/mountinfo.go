// Package mountinfo reads the mounts of a process' mount namespace from /proc/<pid>/mountinfo. It looks up no
// path, so that a container's file systems can't redirect or block the caller.
package mountinfo

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Mount is a mount, as in proc_pid_mountinfo(5).
type Mount struct {
	ID, Parent int
	Source     Source
	// Point is the mount point below the process' root.
	Point string
}

// Source is a path below the root of a file system. That of a removed file ends in "//deleted".
type Source struct{ Device, Root string }

func (s Source) Below(name string) Source {
	return Source{s.Device, strings.TrimSuffix(s.Root, "/") + "/" + name}
}

// MostBytes bounds the input; it is enough for thousands of mounts.
const MostBytes = 16 << 20

// Scan reads mounts until each returns false.
func Scan(r io.Reader, each func(Mount) bool) error {
	var empty error
	_, err := mountinfo.GetMountsFromReader(io.LimitReader(r, MostBytes), func(m *mountinfo.Info) (skip, stop bool) {
		if m.Root == "" || m.Mountpoint == "" {
			empty = fmt.Errorf("mountinfo: mount %d has no root or no mount point", m.ID)
			return false, true
		}
		source := Source{fmt.Sprintf("%d:%d", m.Major, m.Minor), m.Root}
		more := each(Mount{ID: m.ID, Parent: m.Parent, Source: source, Point: m.Mountpoint})
		return more, !more // a skipped mount does not stop
	})
	return errors.Join(err, empty)
}

// Locate returns the source of a path without links, by the mounts of a namespace in their order.
func Locate(mounts []Mount, path string) (Source, bool) {
	best := -1
	for i, m := range mounts {
		if within(path, m.Point) && (best < 0 || len(m.Point) >= len(mounts[best].Point)) {
			best = i // a later mount at the same point covers the earlier
		}
	}
	if best < 0 {
		return Source{}, false
	}
	m := mounts[best]
	if rest := strings.TrimPrefix(strings.TrimPrefix(path, m.Point), "/"); rest != "" {
		return m.Source.Below(rest), true
	}
	return m.Source, true
}

func within(path, dir string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir+"/")
}
