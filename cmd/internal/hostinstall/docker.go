package hostinstall

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

const dockerConfig = "/etc/docker/daemon.json"

// planDocker registers the runtime in dockerd's daemon.json.
func planDocker(h fs.FS, o Options) (plan, error) {
	file := o.config(dockerConfig)
	own := []string{"runtimes", Name}
	t := target{
		path: file, format: jsonFormat{}, seed: "{}\n", own: own,
		settings: []setting{{key: append(slices.Clone(own), "path"), value: o.RuntimePath}},
	}
	p := plan{notes: append(dockerFlags(h, file, o.SetDefault), "run `systemctl reload docker`: dockerd takes up new runtimes without a restart")}
	if o.SetDefault {
		t.settings = append(t.settings, setting{key: []string{"default-runtime"}, value: Name})
	}
	p.targets = []target{t}
	p.check = func(after fs.FS) error {
		data, err := readFile(after, file)
		if err != nil {
			return err
		}
		d, err := jsonFormat{}.parse(data)
		if err != nil {
			return err
		}
		// dockerd wants one of the two, and does not start with both.
		if _, ok := lookup(d.tree(), append(slices.Clone(own), "runtimeType")); ok {
			return fmt.Errorf("%s has a runtime %q of another kind (runtimeType): rename or remove it first", file, Name)
		}
		return nil
	}
	return p, nil
}

// dockerFlags warns of a dockerd that is told by flags what the file will say, for it
// does not start when both do.
func dockerFlags(h fs.FS, file string, setDefault bool) (notes []string) {
	commands, err := fs.Glob(h, "proc/[0-9]*/cmdline")
	if err != nil {
		return nil // the pattern is right
	}
	for _, c := range commands {
		data, err := fs.ReadFile(h, c)
		args := strings.Split(string(bytes.TrimRight(data, "\x00")), "\x00")
		if err != nil || path.Base(args[0]) != "dockerd" {
			continue // it has ended, or is something else
		}
		pid := path.Base(path.Dir(c))
		for i, arg := range args[1:] {
			flag, value, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			if !hasValue && i+2 < len(args) {
				value = args[i+2]
			}
			switch {
			case flag == "config-file" && value != file:
				notes = append(notes, fmt.Sprintf("dockerd (process %s) reads %s, not %s: name it by --config", pid, value, file))
			case flag == "add-runtime", flag == "default-runtime" && setDefault:
				notes = append(notes, fmt.Sprintf("dockerd (process %s) was started with --%s, and starts no more when %s says the same thing: move the flag from its unit into the file", pid, flag, file))
			}
		}
	}
	return notes
}
