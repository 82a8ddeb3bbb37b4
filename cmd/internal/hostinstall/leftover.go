package hostinstall

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

// defaultStays refuses to take out a runtime that a setting of somebody else's makes the
// default: the engine would start no container any more, and dockerd not at all.
func (j *job) defaultStays(edits []edit) error {
	after := overlay{FS: j.view, files: map[string][]byte{}}
	changed := false
	for _, e := range edits {
		after.files[e.path] = e.after
		changed = changed || e.changes()
	}
	if !changed {
		return nil
	}
	file, key, err := defaultLeft[j.Engine](after, j.Options)
	if err != nil || file == "" {
		return err
	}
	return fmt.Errorf("%s says %s = %q, which gpuslice did not write, and no such runtime would be left: name another there first", file, key, Name)
}

// defaultLeft finds, for each engine, the setting that makes our runtime the default where
// there is no such runtime.
var defaultLeft = map[string]func(after fs.FS, o Options) (file, key string, err error){
	"docker":     dockerDefaultLeft,
	"containerd": containerdDefaultLeft,
	"podman":     podmanDefaultLeft,
}

func dockerDefaultLeft(after fs.FS, o Options) (file, key string, err error) {
	file = o.config(dockerConfig)
	d, err := parsed(after, jsonFormat{}, file)
	if d == nil || err != nil {
		return "", "", err
	}
	_, there := lookup(d.tree(), []string{"runtimes", Name})
	if there || d.tree()["default-runtime"] != Name {
		return "", "", nil
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

// podmanDefaultLeft reads the files that podman reads, of which the last one wins.
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
		d, err := parsed(after, tomlFormat{}, f)
		if d == nil || err != nil {
			continue // podman says what is wrong with it
		}
		if _, ok := lookup(d.tree(), []string{"engine", "runtimes", Name}); ok {
			there = true
		}
		if v, ok := lookup(d.tree(), []string{"engine", "runtime"}); ok {
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

// parsed reads a document; nil if there is none.
func parsed(h fs.FS, f format, file string) (document, error) {
	data, err := readFile(h, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d, err := f.parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return d, nil
}
