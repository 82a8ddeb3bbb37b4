package feedback

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuslice/gpuslice/internal/mountinfo"
	"github.com/gpuslice/gpuslice/internal/procfs"
	"github.com/gpuslice/gpuslice/limiter"
)

// mountsOf is which container's usage file is mounted in a process' root, as the kernel
// tells it.
//
// Its path is not looked up there: a container may have mounted a file system on the way
// that never answers. What is mounted is known by its device and its path below that, which a
// tenant can't make: of another container's file it could mount only what it can reach. A
// process that has changed its root is told of no mount outside of it.
type mountsOf struct{ proc procfs.FS }

// usageName is the usage file's name in the container's directory.
var usageName = filepath.Base(limiter.ContainerUsagePath)

// sources are what containers' usage files would be mounted as, by the mounts of our own
// mount namespace.
func (m mountsOf) sources(files map[string]string) map[mountinfo.Source]string {
	var own []mountinfo.Mount
	if !m.scan("self", mountinfo.MostBytes, func(one mountinfo.Mount) bool { own = append(own, one); return true }) {
		return nil
	}
	found := make(map[mountinfo.Source]string, len(files))
	real := map[string]string{} // resolved directories of the claims, in general one
	for container, file := range files {
		dir := filepath.Dir(file)
		claims := filepath.Dir(filepath.Dir(dir))
		if _, known := real[claims]; !known {
			real[claims], _ = filepath.EvalSymlinks(claims)
		}
		base, _ := mountinfo.Locate(own, filepath.Join(real[claims], strings.TrimPrefix(dir, claims)))
		if real[claims] != "" && base.Device != "" {
			found[base.Below(filepath.Base(file))] = container
		}
	}
	return found
}

// container is the one of sources that is mounted in a process; name is its directory in /proc.
// Where the image has links on the way the file is mounted elsewhere, but in the container's
// root still: what leaks out of it into another namespace is none of that one's.
func (m mountsOf) container(name string, sources map[mountinfo.Source]string) string {
	if len(sources) == 0 || m.hosts(name) {
		return ""
	}
	roots, dirs := map[int]bool{}, map[int]mountinfo.Source{}
	exact, linked := "", ""
	complete := m.scan(name, mostMounts, func(one mountinfo.Mount) bool {
		if one.Point == "/" {
			roots[one.ID] = true
		}
		if roots[one.Parent] {
			dirs[one.ID] = one.Source
		}
		container := sources[one.Source]
		switch {
		case container == "":
		case one.Point == limiter.ContainerUsagePath:
			exact = container
		case dirs[one.Parent].Below(usageName) == one.Source:
			linked = container // below the claim's directory, which is mounted on the root
		}
		return exact == ""
	})
	switch {
	case exact != "":
		return exact
	case !complete:
		return ""
	}
	return linked
}

// hosts says whether a process is in the mount namespace of the machine's first, where no
// container's mounts are.
func (m mountsOf) hosts(name string) bool {
	of, err := os.Readlink(m.proc.Path(name, "ns/mnt"))
	if err != nil {
		return false
	}
	first, err := os.Readlink(m.proc.Path("1/ns/mnt"))
	return err == nil && of == first
}

// mostMounts is how many bytes of a process' mount table are read, about 2,000 mounts. A tenant can have
// 100,000 in a user namespace of its own; such a process is identified by its control group.
const mostMounts = 256 << 10

// scan calls each with the mounts of a process until it returns false. scan returns false on an error, and after most bytes.
func (m mountsOf) scan(name string, most int64, each func(mountinfo.Mount) bool) bool {
	f, err := os.Open(m.proc.Path(name, "mountinfo"))
	if err != nil {
		return false
	}
	defer f.Close()
	limited := &io.LimitedReader{R: f, N: most}
	return mountinfo.Scan(limited, each) == nil && limited.N > 0
}
