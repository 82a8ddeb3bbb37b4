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

const (
	ldConf      = "/etc/ld.so.conf"
	ldConfDir   = "/etc/ld.so.conf.d"
	ldConfOurs  = ldConfDir + "/00-gpuslice.conf" // before an image's own, after 00-cuda-compat.conf
	ldCache     = "/etc/ld.so.cache"
	debianIssue = "/etc/debian_version"
)

// systemDirs are the default directories of ldconfig in any distribution.
var systemDirs = []string{"/lib", "/usr/lib", "/lib64", "/usr/lib64"}

// updateLDCache updates the container's /etc/ld.so.cache with the host's ldconfig, so that nothing of
// the image runs. It adds the directories to /etc/ld.so.conf.d too, for an ldconfig in the container.
type updateLDCache struct {
	dirs     []string
	ldconfig string
	host     ldconfigHost
}

type ldconfigHost interface {
	// find can return fs.ErrNotExist.
	find(path string) (string, error)
	// run can return errNotStatic.
	run(program string, root *os.File, args []string) error
	// debian reports whether the host is a Debian: its ldconfig has other default directories.
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
		log.Warn("the host has no ldconfig: programs find libraries only in ld.so's default directories", "ldconfig", h.ldconfig)
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
	if err := r.writable(path.Dir(ldCache)); err != nil { // ldconfig does not create it
		return err
	}

	args := []string{"-f", ldConf, "-C", ldCache}
	if !includes {
		args = append(args, missing...)
	}
	if h.host.debian() && !r.exists(debianIssue) {
		for _, dir := range []string{"/lib64", "/usr/lib64"} { // not default directories of Debian's ldconfig
			if r.exists(dir) && !slices.Contains(conf, dir) {
				args = append(args, dir)
			}
		}
	}
	err = h.host.run(program, r.file, args)
	if errors.Is(err, errNotStatic) {
		log.Warn("the host's ldconfig can't run for a container: programs find libraries only in ld.so's default directories", "error", err)
		return nil
	}
	return err
}

// newDirs returns the directories that ldconfig does not use already.
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

// maxConf limits ld.so.conf with its includes.
const maxConf = 1 << 20

// readConf returns the directories in ld.so.conf and its includes, except our file's, and whether our
// file is included. It reads each file once.
func readConf(r *root) (dirs []string, includesOurs bool) {
	left := maxConf
	seen := map[string]bool{ldConf: true, ldConfOurs: true}
	looked := map[string]bool{}
	for todo := []string{ldConf}; len(todo) > 0; todo = todo[1:] {
		name := todo[0]
		data, err := r.read(name)
		if left -= len(data); err != nil || left < 0 {
			continue // as ldconfig does
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

type hostLdconfig struct{}

var _ ldconfigHost = hostLdconfig{}

// find prefers ldconfig.real, because Ubuntu's ldconfig is a script.
func (hostLdconfig) find(path string) (string, error) {
	path = strings.TrimPrefix(path, "@") // NVIDIA's mark of a path of the host
	for _, candidate := range []string{path + ".real", path} {
		info, err := os.Stat(candidate)
		if err == nil && info.Mode().IsRegular() {
			return candidate, nil
		}
		if err != nil && !os.IsNotExist(err) {
			return "", fmt.Errorf("find ldconfig: %w", err)
		}
	}
	return "", fmt.Errorf("find ldconfig: %s: %w", path, fs.ErrNotExist)
}

// run runs ldconfig -r in a jail, so that every path and link stays in the container.
func (hostLdconfig) run(program string, root *os.File, args []string) error {
	output, err := runInJail(program, root, append([]string{"-r", jailRoot}, args...))
	if err != nil {
		return fmt.Errorf("%s in the container's root: %w: %s", program, err, output)
	}
	return nil
}

func (hostLdconfig) debian() bool {
	_, err := os.Stat(debianIssue)
	return err == nil
}
