package hostinstall

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Name is what gpuslice's runtime is called in every engine.
const Name = "gpuslice"

// plan is what an engine's configuration should have.
type plan struct {
	targets []target
	// notes are what is left to people.
	notes []string
	// check finds out whether the engine will see the settings, with files as they
	// will be; nil if there is nothing between a file and the engine.
	check func(after fs.FS) error
}

// target is one file of a plan.
type target struct {
	path string
	// format is nil for a file that is ours as a whole.
	format format
	// seed is the text that a new file begins with.
	seed     string
	settings []setting
	// own is a table that nobody else has a setting in; none if it is empty.
	own []string
	// whole is the content of a file that is ours as a whole.
	whole []byte
}

// isNamed says whether a setting speaks of our runtime: it can be taken out without a
// record of who put it there.
func (t target) isNamed(s setting) bool {
	if len(t.own) > 0 && isPrefix(t.own, s.key) {
		return false // it goes with its table
	}
	return s.value == Name || s.key[len(s.key)-1] == Name
}

// planner makes the plan of an engine, of what its files hold.
type planner func(h fs.FS, o Options) (plan, error)

var planners = map[string]planner{"docker": planDocker, "containerd": planContainerd, "podman": planPodman}

// readFile reads a file by its absolute path.
func readFile(h fs.FS, file string) ([]byte, error) { return fs.ReadFile(h, inside(file)) }

// inside is an absolute path as fs.FS has it.
func inside(file string) string { return strings.TrimPrefix(path.Clean(file), "/") }

// overlay is a host with some files as they will be; one without content will be gone.
type overlay struct {
	fs.FS
	files map[string][]byte
}

// ReadFile implements [fs.ReadFileFS].
func (o overlay) ReadFile(name string) ([]byte, error) {
	if data, ok := o.files["/"+name]; ok {
		if data == nil {
			return nil, &fs.PathError{Op: "open", Path: "/" + name, Err: fs.ErrNotExist}
		}
		return data, nil
	}
	return fs.ReadFile(o.FS, name)
}

// Glob implements [fs.GlobFS].
func (o overlay) Glob(pattern string) ([]string, error) {
	matches, err := fs.Glob(o.FS, pattern)
	if err != nil {
		return nil, err
	}
	for file, data := range o.files {
		if data == nil {
			matches = slices.DeleteFunc(matches, func(m string) bool { return m == inside(file) })
			continue
		}
		if ok, err := path.Match(pattern, inside(file)); err != nil {
			return nil, err
		} else if ok {
			matches = append(matches, inside(file))
		}
	}
	return sortedSet(matches), nil
}

// headline is the first line of a configuration file that is ours.
func headline(engine string) string {
	return fmt.Sprintf("# Written by `gpuslice install %s`; `gpuslice uninstall %s` takes it away.\n", engine, engine)
}
