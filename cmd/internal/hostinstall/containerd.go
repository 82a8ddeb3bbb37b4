package hostinstall

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/grant"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

const (
	containerdConfig = "/etc/containerd/config.toml"
	// dropIn sorts after other files, NVIDIA's 99-nvidia.toml too: the last one wins.
	dropIn = "zz-gpuslice.toml"
	shim   = "io.containerd.runc.v2"
	// newestConfig is the newest version of containerd's configuration that is known.
	newestConfig = 4
	// tolerance is the annotation of pods that may start without a required plugin.
	tolerance = grant.AnnotationTolerance
)

// planContainerd adds a runtime handler, and what NRI needs for the agent.
func planContainerd(h fs.FS, o Options) (plan, error) {
	main := o.config(containerdConfig)
	c, err := doctor.ReadContainerd(h, main, o.ContainerdVersion)
	if err != nil {
		return plan{}, err
	}
	format, err := formatVersion(c, main, o.ContainerdVersion)
	if err != nil {
		return plan{}, err
	}
	cri := doctor.PluginCRI
	if format < 3 {
		cri = doctor.PluginCRIv2
	}
	t := target{path: main, format: tomlFormat{}, seed: headline("containerd") + fmt.Sprintf("version = %d\n", format)}
	if dir := dropInDir(c, format); dir != "" {
		t.path = path.Join(dir, dropIn)
	} else if err := generated(h, main); err != nil {
		return plan{}, err
	}
	if !o.NRIOnly {
		section := []string{"plugins", cri, "containerd"}
		t.own = slices.Concat(section, []string{"runtimes", Name})
		t.settings = append(keptRunc(section, c, format), handler(t.own, c, o.RuntimePath)...)
		if o.SetDefault {
			t.settings = append(t.settings, setting{key: append(slices.Clone(section), "default_runtime_name"), value: Name})
		}
	}
	t.settings = append(t.settings, nriSettings(c, o)...)
	p := plan{}
	if !o.NRIOnly {
		if err := p.barrier(h, c, o, cri, main, &t); err != nil {
			return plan{}, err
		}
	}
	p.targets = append(p.targets, t)
	if err := p.enablePlugins(h, c); err != nil {
		return plan{}, err
	}
	if doctor.VersionBefore(o.ContainerdVersion, 1, 7, 0) {
		p.notes = append(p.notes, "containerd "+o.ContainerdVersion+" has no NRI: pods get no GPU")
	}
	p.notes = append(p.notes, "run `systemctl restart containerd` (containers go on running), then `gpuslice doctor`")
	if !o.NRIOnly {
		p.notes = append(p.notes, "a pod without a grant gets no GPU from the runtime handler "+Name)
	}
	p.check = func(after fs.FS) error { return seen(after, main, o.ContainerdVersion, t) }
	return p, nil
}

// formatVersion is the configuration's, or the one that a new file gets.
func formatVersion(c doctor.Containerd, main, runtime string) (int, error) {
	switch {
	case len(c.Files) == 0 && (runtime == "" || doctor.VersionBefore(runtime, 2, 0, 0)):
		return 2, nil // which every containerd since 1.3 reads
	case len(c.Files) == 0:
		return 3, nil
	case c.Version < 2:
		return 0, fmt.Errorf("%s is of version %d, and gpuslice edits 2 and newer: `containerd --config %s config migrate` prints it in the newest version", main, max(c.Version, 1), main)
	case c.Version > newestConfig:
		return 0, fmt.Errorf("%s is of version %d, and gpuslice knows none after %d: it may mean something else now", main, c.Version, newestConfig)
	}
	return c.Version, nil
}

// dropInDir is the directory that the main file imports all of; empty if there is none.
//
// Before version 3, containerd 1.x may be what reads the files: it takes a plugin's
// section from the last file that has one, and so a drop-in would take away all of
// the main file's.
func dropInDir(c doctor.Containerd, format int) string {
	if format < 3 {
		return ""
	}
	for _, pattern := range c.Imports {
		dir, file := path.Split(pattern)
		if ok, err := path.Match(file, dropIn); err != nil || !ok || file == dropIn || strings.ContainsAny(dir, "*?[") {
			continue
		}
		if ok, _ := path.Match(file, backupOf(dropIn, nil)); ok {
			continue // "*": containerd would read the backups there as configuration
		}
		return path.Clean(dir)
	}
	return ""
}

// generated refuses a file that something writes again.
func generated(h fs.FS, main string) error {
	data, err := readFile(h, main)
	if err != nil {
		return nil // there is none, or what is wrong was said
	}
	head := bytes.ToUpper(data[:min(len(data), 1024)])
	if !bytes.Contains(head, []byte("DO NOT EDIT")) {
		return nil
	}
	return fmt.Errorf("%s says that it is generated, so that what is written there does not last: "+
		"let it import a directory (imports = [\"…/*.toml\"], as newer k3s does), or put the lines into its template (k3s: config.toml.tmpl); "+
		"`gpuslice install containerd --dry-run --config /new.toml` shows them; then set barrier.install=false in the chart", main)
}

// handler is our runtime handler: that of the default runtime with another binary, so
// that cgroups are driven the same way.
func handler(table []string, c doctor.Containerd, binary string) []setting {
	at := func(key ...string) []string { return slices.Concat(table, key) }
	base := baseHandler(c)
	settings := []setting{{key: at("runtime_type"), value: shim}}
	settings = append(settings, plain(base, table, "runtime_type", "runtime_engine", "runtime_root")...)
	settings = append(settings, setting{key: at("options", "BinaryName"), value: binary})
	options, _ := base["options"].(map[string]any)
	return append(settings, plain(options, at("options"), "BinaryName")...)
}

// keptRunc is the handler that containerd has by default. containerd 1.x takes a file's
// table of handlers in the place of its own: with ours alone in it, no other pod would
// start any more.
func keptRunc(section []string, c doctor.Containerd, format int) []setting {
	if v, _ := lookup(c.Plugins, []string{doctor.PluginCRI, "containerd", "runtimes"}); format > 2 || hasOther(v) {
		return nil
	}
	return []setting{{key: slices.Concat(section, []string{"runtimes", "runc", "runtime_type"}), value: shim, alone: true}}
}

// hasOther says whether a table of handlers has one beside ours.
func hasOther(handlers any) bool {
	table, _ := handlers.(map[string]any)
	for name := range table {
		if name != Name {
			return true
		}
	}
	return false
}

// baseHandler is the default runtime's handler, if the same shim runs it, or runc's.
func baseHandler(c doctor.Containerd) map[string]any {
	byDefault, _ := lookup(c.Plugins, []string{doctor.PluginCRI, "containerd", "default_runtime_name"})
	name, _ := byDefault.(string)
	for _, n := range []string{name, "runc"} {
		v, _ := lookup(c.Plugins, []string{doctor.PluginCRI, "containerd", "runtimes", n})
		if h, ok := v.(map[string]any); ok && n != Name && h["runtime_type"] == shim {
			return h
		}
	}
	return nil
}

// plain are a table's values that say something, but for some.
func plain(table map[string]any, at []string, without ...string) (settings []setting) {
	for _, k := range slices.Sorted(maps.Keys(table)) {
		if says(table[k]) && !slices.Contains(without, k) {
			settings = append(settings, setting{key: append(slices.Clone(at), k), value: table[k]})
		}
	}
	return settings
}

// says whether a value is one that a handler wouldn't have without it.
func says(v any) bool {
	switch v := v.(type) {
	case string:
		return v != ""
	case bool:
		return v
	case int64:
		return v != 0
	case []any:
		return len(v) > 0 && !slices.ContainsFunc(v, func(e any) bool { _, isTable := e.(map[string]any); return isTable })
	}
	return false
}

// nriSettings are what `gpuslice doctor` asks for and the configuration lacks. A value
// that works is left, whatever it is.
func nriSettings(c doctor.Containerd, o Options) (settings []setting) {
	runtime := o.ContainerdVersion
	if doctor.VersionBefore(runtime, 1, 7, 0) {
		return nil // there is no such plugin
	}
	want := func(value any, good func(have any) bool, key ...string) {
		have, _ := lookup(c.Plugins, append([]string{doctor.PluginNRI}, key...))
		if !good(have) {
			settings = append(settings, setting{key: append([]string{"plugins", doctor.PluginNRI}, key...), value: value})
		}
	}
	is := func(value any) func(any) bool { return func(have any) bool { return have == value } }
	isText := func(have any) bool { return have != nil && have != "" }
	notTrue := func(have any) bool { return have != true }
	want(false, is(false), "disable")
	want(false, notTrue, "disable_connections")
	want("5s", isText, "plugin_registration_timeout")
	want("2s", inReach, "plugin_request_timeout")
	if !doctor.VersionBefore(runtime, 2, 2, 0) { // older ones have no validator
		want(true, is(true), "default_validator", "enable")
		want(tolerance, isText, "default_validator", "tolerate_missing_plugins_annotation")
		if o.RequireAgent {
			have, _ := lookup(c.Plugins, []string{doctor.PluginNRI, "default_validator", "required_plugins"})
			list, _ := have.([]any)
			requires := func(any) bool { return slices.Contains(list, any(nriplugin.PluginName)) }
			want(append(slices.Clone(list), nriplugin.PluginName), requires, "default_validator", "required_plugins")
		}
	}
	return settings
}

// inReach says whether a request timeout is one that doctor finds right.
func inReach(have any) bool {
	text, _ := have.(string)
	d, err := time.ParseDuration(text)
	return err == nil && d >= time.Second && d <= 10*time.Second
}

// enablePlugins takes NRI out of the lists of disabled plugins, which no other file can.
func (p *plan) enablePlugins(h fs.FS, c doctor.Containerd) error {
	for _, file := range c.Files {
		data, err := readFile(h, file)
		if err != nil {
			return err
		}
		d, err := tomlFormat{}.parse(data)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		disabled, _ := d.tree()["disabled_plugins"].([]any)
		if slices.ContainsFunc(disabled, func(v any) bool { return v == "cri" || v == doctor.PluginCRIv2 || v == doctor.PluginCRI }) {
			p.notes = append(p.notes, file+" disables CRI (disabled_plugins), as Docker's packages do: the kubelet can't use this containerd, and the handler is not seen")
		}
		if !slices.Contains(disabled, any(doctor.PluginNRI)) {
			continue
		}
		rest := slices.DeleteFunc(slices.Clone(disabled), func(v any) bool { return v == doctor.PluginNRI })
		s := setting{key: []string{"disabled_plugins"}, value: rest}
		if i := slices.IndexFunc(p.targets, func(t target) bool { return t.path == file }); i >= 0 {
			p.targets[i].settings = append(p.targets[i].settings, s)
		} else {
			p.targets = append(p.targets, target{path: file, format: tomlFormat{}, settings: []setting{s}})
		}
	}
	return nil
}

// seen checks that no other file wins over the settings.
func seen(after fs.FS, main, runtime string, t target) error {
	c, err := doctor.ReadContainerd(after, main, runtime)
	if err != nil {
		return err
	}
	for _, pattern := range c.Imports {
		if ok, _ := path.Match(pattern, backupOf(t.path, nil)); ok {
			return fmt.Errorf("%s imports %s, so that containerd would read the backups of %s, too: have it import a pattern that ends in .toml", main, pattern, t.path)
		}
	}
	for _, s := range t.settings {
		if s.key[0] != "plugins" {
			continue
		}
		key := slices.Clone(s.key[1:])
		if key[0] == doctor.PluginCRIv2 {
			key[0] = doctor.PluginCRI
		}
		if have, _ := lookup(c.Plugins, key); !equal(have, s.value) {
			return fmt.Errorf("%s would be written to %s, and a file that is read later (%s) says %v: change that file, or name it by --config",
				dotted(s.key), t.path, strings.Join(c.Files, ", "), have)
		}
	}
	return nil
}
