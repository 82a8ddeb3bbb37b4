package hostinstall

import (
	"fmt"
	"io/fs"
	"slices"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

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
