package feedback

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/mountinfo"
	"github.com/gpuslice/gpuslice/internal/procfs"
)

// mountsOf reads which container's usage file is mounted in a process' root. It compares the device and path of mounts,
// which a tenant can't forge, and does not look up paths, because a tenant's file system may never answer.
type mountsOf struct{ proc procfs.FS }

var usageName = filepath.Base(api.ContainerUsagePath)

func (m mountsOf) sources(files map[string]string) map[mountinfo.Source]string {
	var own []mountinfo.Mount
	if !m.scan("self", mountinfo.MostBytes, func(one mountinfo.Mount) bool { own = append(own, one); return true }) {
		return nil
	}
	found := make(map[mountinfo.Source]string, len(files))
	real := map[string]string{} // usually one
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

// If the image has links in the path, the file is mounted elsewhere in the container's root.
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
		case one.Point == api.ContainerUsagePath:
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

// hosts reports whether a process is in PID 1's mount namespace, which has no container's mounts.
func (m mountsOf) hosts(name string) bool {
	of, err := os.Readlink(m.proc.Path(name, "ns/mnt"))
	if err != nil {
		return false
	}
	first, err := os.Readlink(m.proc.Path("1/ns/mnt"))
	return err == nil && of == first
}

// mostMounts is about 2,000 mounts. A tenant can have 100,000: then the control group counts.
const mostMounts = 256 << 10

// scan returns false on an error, and after most bytes.
func (m mountsOf) scan(name string, most int64, each func(mountinfo.Mount) bool) bool {
	f, err := os.Open(m.proc.Path(name, "mountinfo"))
	if err != nil {
		return false
	}
	defer f.Close()
	limited := &io.LimitedReader{R: f, N: most}
	return mountinfo.Scan(limited, each) == nil && limited.N > 0
}
