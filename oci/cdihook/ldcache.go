package cdihook

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
)

// The files of the container that ld.so and ldconfig know.
const (
	ldConf      = "/etc/ld.so.conf"
	ldConfDir   = "/etc/ld.so.conf.d"
	ldConfOurs  = ldConfDir + "/00-gpuslice.conf" // before an image's own, after 00-cuda-compat.conf
	ldCache     = "/etc/ld.so.cache"
	debianIssue = "/etc/debian_version"
)

// systemDirs are those that ldconfig looks into by itself, here or there.
var systemDirs = []string{"/lib", "/usr/lib", "/lib64", "/usr/lib64"}

// updateLDCache makes the container's /etc/ld.so.cache again, so that its programs find
// the driver's libraries that were mounted. The host's ldconfig does it: the image may
// have none, and nothing of the image is run. The directories are written down in
// /etc/ld.so.conf.d too, so that they are found after the container runs ldconfig itself.
type updateLDCache struct {
	dirs     []string
	ldconfig string
	host     ldconfigHost
}

// ldconfigHost is the host as far as its ldconfig goes.
type ldconfigHost interface {
	// find is the program's path, fs.ErrNotExist where there is none.
	find(path string) (string, error)
	// run runs it in a container's root directory; errNotAlone where it can't be run there.
	run(program string, root *os.File, args []string) error
	// debian says whether the host is a Debian, whose ldconfig has other directories.
	debian() bool
}

func (h *updateLDCache) flags(f *flagSet) {
	f.list(&h.dirs, "folder")
	f.text(&h.ldconfig, "ldconfig-path", "/sbin/ldconfig")
}

func (h *updateLDCache) run(r *root, log *slog.Logger) error {
	for _, dir := range h.dirs {
		if !path.IsAbs(dir) || strings.ContainsAny(dir, "\n\x00") {
			return fmt.Errorf("--folder %q is not an absolute path", dir)
		}
	}
	program, err := h.host.find(h.ldconfig)
	if errors.Is(err, fs.ErrNotExist) {
		log.Warn("the host has no ldconfig: the container's programs find libraries in ld.so's own directories only", "ldconfig", h.ldconfig)
		return nil
	}
	if err != nil {
		return err
	}

	conf, includes := readConf(r)
	missing := newDirs(h.dirs, conf)
	if len(missing) > 0 {
		if err := r.write(ldConfOurs, []byte(strings.Join(missing, "\n")+"\n")); err != nil {
			return err
		}
	}
	if err := r.writable(path.Dir(ldCache)); err != nil { // ldconfig doesn't make it
		return err
	}

	args := []string{"-f", ldConf, "-C", ldCache}
	if !includes {
		args = append(args, missing...)
	}
	if h.host.debian() && !r.exists(debianIssue) {
		for _, dir := range []string{"/lib64", "/usr/lib64"} { // which Debian's ldconfig doesn't look into
			if r.exists(dir) && !slices.Contains(conf, dir) {
				args = append(args, dir)
			}
		}
	}
	err = h.host.run(program, r.file, args)
	if errors.Is(err, errNotAlone) {
		log.Warn("the host's ldconfig can't be used for a container: its programs find libraries in ld.so's own directories only", "error", err)
		return nil
	}
	return err
}

// newDirs are those, each once, that ldconfig wouldn't look into anyway. The others
// keep the rank that the image gave them.
func newDirs(dirs, conf []string) []string {
	var missing []string
	for _, dir := range dirs {
		dir = path.Clean(dir)
		if !slices.Contains(conf, dir) && !slices.Contains(systemDirs, dir) && !slices.Contains(missing, dir) {
			missing = append(missing, dir)
		}
	}
	return missing
}

// maxConf is how much of ld.so.conf, with all that it includes, is read: it is the image's
// word, and an honest one is short.
const maxConf = 1 << 20

// readConf reads the container's ld.so.conf and what it includes: the directories that it
// names, our own file's aside, and whether it includes our file. Each file is read once,
// and each pattern is looked for once.
func readConf(r *root) (dirs []string, includesOurs bool) {
	left := maxConf
	seen := map[string]bool{ldConf: true, ldConfOurs: true}
	looked := map[string]bool{}
	for todo := []string{ldConf}; len(todo) > 0; todo = todo[1:] {
		name := todo[0]
		data, err := r.read(name)
		if left -= len(data); err != nil || left < 0 {
			continue // as ldconfig goes on
		}
		lines := bufio.NewScanner(bytes.NewReader(data))
		for lines.Scan() {
			line, _, _ := strings.Cut(lines.Text(), "#")
			fields := strings.Fields(line)
			switch {
			case len(fields) == 0 || fields[0] == "hwcap":
			case fields[0] == "include":
				for _, pattern := range fields[1:] {
					if !path.IsAbs(pattern) {
						pattern = path.Join(path.Dir(name), pattern)
					}
					if looked[pattern] {
						continue
					}
					looked[pattern] = true
					ours, _ := path.Match(pattern, ldConfOurs)
					includesOurs = includesOurs || ours
					for _, file := range matching(r, pattern) {
						if !seen[file] {
							seen[file] = true
							todo = append(todo, file)
						}
					}
				}
			default:
				for _, dir := range strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(" \t,:", c) }) {
					dirs = append(dirs, path.Clean(dir))
				}
			}
		}
	}
	return dirs, includesOurs
}

// matching are the container's files of a pattern, whose last part alone has wildcards.
func matching(r *root, pattern string) []string {
	dir, last := path.Split(pattern)
	var files []string
	for _, name := range r.list(dir) {
		if ok, _ := path.Match(last, name); ok {
			files = append(files, path.Join(dir, name))
		}
	}
	slices.Sort(files)
	return files
}
