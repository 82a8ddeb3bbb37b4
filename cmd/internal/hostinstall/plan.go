package hostinstall

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Name is gpuslice's name in every engine.
const Name = "gpuslice"

// plan is the configuration that an engine needs.
type plan struct {
	targets []target
	notes   []string
	// check verifies that no other file overrides the settings; can be nil.
	check func(after fs.FS) error
}

type target struct {
	path     string
	seed     string
	settings []setting
	// dropIn is a file that only gpuslice writes.
	dropIn bool
	// whole is the content of a file without settings.
	whole []byte
}

// planner makes a plan from the host's files without gpuslice's settings.
type planner func(h fs.FS, o Options) (plan, error)

var planners = map[string]planner{"docker": planDocker, "containerd": planContainerd, "podman": planPodman}

func readFile(h fs.FS, file string) ([]byte, error) { return fs.ReadFile(h, inside(file)) }

func inside(file string) string { return strings.TrimPrefix(path.Clean(file), "/") }

// readDocument reads a configuration file; nil if it does not exist.
func readDocument(h fs.FS, engine, file string) (map[string]any, error) {
	data, err := readFile(h, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d, err := parse(engine, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return d.tree()
}

// overlay is a host with some other files; nil is no file.
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
	matches = slices.DeleteFunc(matches, func(m string) bool { _, ok := o.files["/"+m]; return ok })
	for file, data := range o.files {
		if ok, err := path.Match(pattern, inside(file)); err != nil {
			return nil, err
		} else if ok && data != nil {
			matches = append(matches, inside(file))
		}
	}
	slices.Sort(matches)
	return matches, nil
}

func headline(engine string) string {
	return fmt.Sprintf("# Written by `gpuslice install %s`. `gpuslice uninstall %s` removes it.\n", engine, engine)
}
