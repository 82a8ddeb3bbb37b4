package hostinstall

import (
	"fmt"
	"io/fs"
	"path"
)

const (
	podmanConfig   = "/etc/containers/containers.conf.d/gpuslice.conf"
	podmanHooksDir = "/usr/share/containers/oci/hooks.d"
)

// planPodman registers the runtime in a containers.conf of its own, and the hooks for
// containers of other runtimes.
func planPodman(_ fs.FS, o Options) (plan, error) {
	t := target{
		path: o.config(podmanConfig), format: tomlFormat{}, seed: headline("podman"),
		settings: []setting{{key: []string{"engine", "runtimes", Name}, value: []any{o.RuntimePath}}},
	}
	if o.SetDefault {
		t.settings = append(t.settings, setting{key: []string{"engine", "runtime"}, value: Name})
	}
	p := plan{targets: []target{t}, notes: []string{"podman reads it with its next command: nothing has to be restarted"}}
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

// hookFile is a hook's definition that runs the runtime where it is on this host.
func hookFile(files fs.FS, name, runtime string) ([]byte, error) {
	data, err := fs.ReadFile(files, name)
	if err != nil {
		return nil, err
	}
	d, err := jsonFormat{}.parse(data)
	if err != nil {
		return nil, err
	}
	if _, err := apply(jsonFormat{}, d, []setting{{key: []string{"hook", "path"}, value: runtime}}); err != nil {
		return nil, err
	}
	return d.text(), nil
}
