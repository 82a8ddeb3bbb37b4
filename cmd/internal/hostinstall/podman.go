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

// planPodman registers the runtime in a drop-in file, and the hooks for containers of other runtimes.
func planPodman(_ fs.FS, o Options) (plan, error) {
	t := target{
		path: o.config(podmanConfig), seed: headline("podman"), dropIn: o.Config == "",
		settings: []setting{{[]string{"engine", "runtimes", Name}, []any{o.RuntimePath}}},
	}
	if o.SetDefault {
		t.settings = append(t.settings, setting{[]string{"engine", "runtime"}, Name})
	}
	p := plan{targets: []target{t}, notes: []string{"podman reads it at its next command: no restart is necessary"}}
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
