package hostinstall

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

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
	return plan{targets: []target{t}, notes: notes}, nil
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
