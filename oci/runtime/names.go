package ociruntime

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/oci"
)

// nameAnnotations have a container's name in containerd's CRI, nerdctl and podman's kube play.
var nameAnnotations = []string{"io.kubernetes.cri.container-name", "nerdctl/name", "io.podman.annotations.container.name"}

const longestName = 253

// isName reports whether docker, podman and nerdctl accept a name. A regular expression would cost each start of the program 0.8 ms.
func isName(name string) bool {
	plain := func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	}
	if name == "" || len(name) > longestName || !plain(name[0]) {
		return false
	}
	for i := range len(name) {
		if !plain(name[i]) && strings.IndexByte("_.-", name[i]) < 0 {
			return false
		}
	}
	return true
}

// nameOf returns the name that the engine gave the container, or its ID. A later rename is not seen.
func nameOf(c oci.Container, bundle string) string {
	for _, key := range nameAnnotations {
		if name := c.Annotations[key]; name != "" && len(name) <= longestName {
			return name
		}
	}
	for _, find := range []func(oci.Container, string) string{dockersName, podmansName} {
		if name := find(c, bundle); isName(name) {
			return name
		}
	}
	return c.ID
}

// engineFiles are mounts of files in the directory that docker has for each container.
var engineFiles = []string{"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}

// dockersName reads the name in docker's record of the container. The files can be those of another container of which
// it shares the network.
func dockersName(c oci.Container, _ string) string {
	for _, dir := range engineDirs(c) {
		var record struct{ ID, Name string }
		path := filepath.Join(filepath.Dir(dir), c.ID, "config.v2.json")
		if readRecord(path, &record) && record.ID == c.ID {
			return strings.TrimPrefix(record.Name, "/")
		}
	}
	return ""
}

// podmansName reads the name in the lists of containers-storage, which are in the directories that have one for each
// container: DIR/<driver>-containers/<ID>/userdata is the bundle, and the source of podman's mounts.
func podmansName(c oci.Container, bundle string) string {
	of := "-containers/" + c.ID + "/userdata"
	paths := []string{bundle}
	for _, m := range c.Mounts {
		paths = append(paths, m.Source)
	}
	seen := map[string]bool{}
	for _, path := range paths {
		prefix, _, is := strings.Cut(path, of)
		if !is || !filepath.IsAbs(path) || seen[prefix] || len(seen) == mostLists {
			continue
		}
		seen[prefix] = true
		for _, list := range []string{"containers.json", "volatile-containers.json"} { // the second has those with --rm
			var records []struct {
				ID    string   `json:"id"`
				Names []string `json:"names"`
			}
			readRecord(filepath.Join(prefix+"-containers", list), &records)
			for _, r := range records {
				if r.ID == c.ID && len(r.Names) > 0 {
					return r.Names[0]
				}
			}
		}
	}
	return ""
}

// mostLists are the directories of podman's data, and of its state since boot.
const mostLists = 2

func engineDirs(c oci.Container) (dirs []string) {
	for _, m := range c.Mounts {
		for _, file := range engineFiles {
			if m.Destination == file && filepath.IsAbs(m.Source) {
				dirs = append(dirs, filepath.Dir(m.Source))
			}
		}
	}
	return dirs
}

// longestRecord bounds what is read: a container's user can choose the source of a mount.
const longestRecord = 4 << 20

// readRecord reads a JSON file, and neither waits for another program nor reads a device.
func readRecord(path string, into any) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > longestRecord {
		return false
	}
	data, err := io.ReadAll(io.LimitReader(f, longestRecord))
	return err == nil && json.Unmarshal(data, into) == nil
}
