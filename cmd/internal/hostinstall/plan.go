package hostinstall

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
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
	tree, err := treeOf(engine, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return tree, nil
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

const dockerConfig = "/etc/docker/daemon.json"

// planDocker registers the runtime in daemon.json: dockerd reads no other file.
func planDocker(h fs.FS, o Options) (plan, error) {
	file := o.config(dockerConfig)
	tree, err := readDocument(h, "docker", file)
	if err != nil {
		return plan{}, fmt.Errorf("%w: it was not changed", err)
	}
	// dockerd does not start if a runtime has both path and runtimeType.
	if _, ok := lookup(tree, []string{"runtimes", Name, "runtimeType"}); ok {
		return plan{}, fmt.Errorf("%s has a runtime %q of another kind (runtimeType): rename or remove it first", file, Name)
	}
	t := target{path: file, seed: "{}\n", settings: []setting{{[]string{"runtimes", Name}, map[string]any{"path": o.RuntimePath}}}}
	if o.SetDefault {
		t.settings = append(t.settings, setting{[]string{"default-runtime"}, Name})
	}
	notes := append(dockerFlags(h, file, o.SetDefault), "run `systemctl reload docker`: dockerd reads new runtimes without a restart")
	p := plan{targets: []target{t}, notes: notes}
	p.planAgent(h, o)
	return p, nil
}

// dockerFlags warns of a dockerd with flags for the same settings: it does not start with both.
func dockerFlags(h fs.FS, file string, setDefault bool) (notes []string) {
	commands, _ := fs.Glob(h, "proc/[0-9]*/cmdline")
	for _, c := range commands {
		data, err := fs.ReadFile(h, c)
		args := strings.Split(string(bytes.TrimRight(data, "\x00")), "\x00")
		if err != nil || path.Base(args[0]) != "dockerd" {
			continue
		}
		pid := path.Base(path.Dir(c))
		for i, arg := range args[1:] {
			flag, value, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			if !hasValue && i+2 < len(args) {
				value = args[i+2]
			}
			switch {
			case flag == "config-file" && value != file:
				notes = append(notes, fmt.Sprintf("dockerd (process %s) reads %s, not %s: set --config", pid, value, file))
			case flag == "add-runtime", flag == "default-runtime" && setDefault:
				notes = append(notes, fmt.Sprintf("dockerd (process %s) has the flag --%s and does not start if %s has the same setting: move the flag from the systemd unit to the file", pid, flag, file))
			}
		}
	}
	return notes
}

const (
	podmanConfig   = "/etc/containers/containers.conf.d/gpuslice.conf"
	podmanHooksDir = "/usr/share/containers/oci/hooks.d"
)

// planPodman registers the runtime in a drop-in file, and the hooks for containers of other runtimes.
func planPodman(h fs.FS, o Options) (plan, error) {
	t := target{
		path: o.config(podmanConfig), seed: headline("podman"), dropIn: o.Config == "",
		settings: []setting{{[]string{"engine", "runtimes", Name}, []any{o.RuntimePath}}},
	}
	if o.SetDefault {
		t.settings = append(t.settings, setting{[]string{"engine", "runtime"}, Name})
	}
	p := plan{targets: []target{t}, notes: []string{"podman reads it at its next command: no restart is necessary"}}
	p.planAgent(h, o)
	if !o.Hooks {
		return p, nil
	}
	entries, err := fs.ReadDir(o.HookFiles, ".")
	if err != nil {
		return p, fmt.Errorf("list the hooks: %w", err)
	}
	for _, e := range entries {
		content, err := hookFile(o.HookFiles, e.Name(), o.RuntimePath)
		if err != nil {
			return p, fmt.Errorf("hook %s: %w", e.Name(), err)
		}
		p.targets = append(p.targets, target{path: path.Join(podmanHooksDir, e.Name()), whole: content})
	}
	return p, nil
}

func hookFile(files fs.FS, name, runtime string) ([]byte, error) {
	data, err := fs.ReadFile(files, name)
	if err != nil {
		return nil, err
	}
	d, err := parseJSON(data)
	if err != nil {
		return nil, err
	}
	_, err = apply(d, []setting{{[]string{"hook", "path"}, runtime}})
	return d.text(), err
}

// checkDefault refuses to remove a runtime that the user made the default: dockerd would not start.
func (j *job) checkDefault(edits []edit) error {
	if !slices.ContainsFunc(edits, edit.changes) {
		return nil
	}
	after := overlay{FS: j.view, files: map[string][]byte{}}
	for _, e := range edits {
		after.files[e.path] = e.after
	}
	file, key, err := defaultLeft[j.Engine](after, j.Options)
	if err != nil || file == "" {
		return err
	}
	return fmt.Errorf("%s has %s = %q, which gpuslice did not write: set another default runtime first", file, key, Name)
}

// defaultLeft finds the setting that makes gpuslice the default runtime although that runtime does not exist.
var defaultLeft = map[string]func(after fs.FS, o Options) (file, key string, err error){
	"docker":     dockerDefaultLeft,
	"containerd": containerdDefaultLeft,
	"podman":     podmanDefaultLeft,
}

func dockerDefaultLeft(after fs.FS, o Options) (file, key string, err error) {
	file = o.config(dockerConfig)
	tree, err := readDocument(after, o.Engine, file)
	_, there := lookup(tree, []string{"runtimes", Name})
	if err != nil || there || tree["default-runtime"] != Name {
		return "", "", err
	}
	return file, "default-runtime", nil
}

func containerdDefaultLeft(after fs.FS, o Options) (file, key string, err error) {
	main := o.config(containerdConfig)
	c, err := doctor.ReadContainerd(after, main, o.ContainerdVersion)
	if err != nil {
		return "", "", err
	}
	section := []string{doctor.PluginCRI, "containerd"}
	byDefault, _ := lookup(c.Plugins, append(section, "default_runtime_name"))
	_, there := lookup(c.Plugins, append(section, "runtimes", Name))
	if there || byDefault != Name {
		return "", "", nil
	}
	return main, "default_runtime_name", nil
}

func podmanDefaultLeft(after fs.FS, o Options) (file, key string, err error) {
	dropIns, err := fs.Glob(after, "etc/containers/containers.conf.d/*.conf")
	if err != nil {
		return "", "", err
	}
	files := []string{"/usr/share/containers/containers.conf", "/etc/containers/containers.conf"}
	for _, f := range dropIns {
		files = append(files, "/"+f)
	}
	there := false
	for _, f := range files {
		tree, err := readDocument(after, o.Engine, f)
		if err != nil {
			continue // podman reports the error
		}
		if _, ok := lookup(tree, []string{"engine", "runtimes", Name}); ok {
			there = true
		}
		if v, ok := lookup(tree, []string{"engine", "runtime"}); ok {
			if file = ""; v == Name {
				file = f
			}
		}
	}
	if there {
		return "", "", nil
	}
	return file, "engine.runtime", nil
}
