package cores

import (
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/internal/mountinfo"
	"github.com/gpuslice/gpuslice/limiter"
)

// mountsOf is which container's usage file is mounted in a process' root, as the kernel
// tells it.
//
// Its path is not looked up there: a container may have mounted a file system on the way
// that never answers. What is mounted is known by its device and its path below that, which a
// tenant can't make: of another container's file it could mount only what it can reach. A
// process that has changed its root is told of no mount outside of it.
type mountsOf struct{ proc string }

// sources are what containers' usage files would be mounted as, by the mounts of our own
// mount namespace.
func (m mountsOf) sources(files map[string]string) map[mountinfo.Source]string {
	var own []mountinfo.Mount
	if !m.scan("self", func(one mountinfo.Mount) bool { own = append(own, one); return true }) {
		return nil
	}
	found := make(map[mountinfo.Source]string, len(files))
	bases := map[string]mountinfo.Source{} // of the folder that has all containers': mostly one
	for container, file := range files {
		folder := filepath.Dir(file)
		parent := filepath.Dir(folder)
		base, known := bases[parent]
		if !known {
			if real, err := filepath.EvalSymlinks(parent); err == nil {
				base, _ = mountinfo.Locate(own, real)
			}
			bases[parent] = base
		}
		if base.Device != "" {
			found[base.Below(filepath.Base(folder)+"/"+filepath.Base(file))] = container
		}
	}
	return found
}

// container is the one of sources that is mounted in a process; name is its folder in /proc.
// Where the image has links on the way the file is mounted elsewhere, but in the container's
// root still: what leaks out of it into another namespace is none of that one's.
func (m mountsOf) container(name string, sources map[mountinfo.Source]string) string {
	if len(sources) == 0 || m.hosts(name) {
		return ""
	}
	var roots []int
	exact, linked := "", ""
	m.scan(name, func(one mountinfo.Mount) bool {
		if one.Point == "/" {
			roots = append(roots, one.ID)
		}
		container := sources[one.Source]
		switch {
		case container == "":
		case one.Point == limiter.ContainerUsagePath:
			exact = container
		default:
			for _, root := range roots {
				if one.Parent == root {
					linked = container
				}
			}
		}
		return exact == ""
	})
	if exact != "" {
		return exact
	}
	return linked
}

// hosts says whether a process is in the mount namespace of the machine's first, where no
// container's mounts are.
func (m mountsOf) hosts(name string) bool {
	of, err := os.Readlink(filepath.Join(m.proc, name, "ns/mnt"))
	if err != nil {
		return false
	}
	first, err := os.Readlink(filepath.Join(m.proc, "1/ns/mnt"))
	return err == nil && of == first
}

func (m mountsOf) scan(name string, each func(mountinfo.Mount) bool) bool {
	f, err := os.Open(filepath.Join(m.proc, name, "mountinfo"))
	if err != nil {
		return false
	}
	defer f.Close()
	return mountinfo.Scan(f, each) == nil
}
