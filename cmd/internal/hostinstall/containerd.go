package hostinstall

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci/request"
)

const (
	containerdConfig = "/etc/containerd/config.toml"
	// dropIn sorts after other files, such as NVIDIA's 99-nvidia.toml: the last file wins.
	dropIn = "zz-gpuslice.toml"
	// dropInPattern matches only dropIn, not its backups. A pattern may match no file, unlike a path.
	dropInPattern = "zz-gpuslice*.toml"
	shim          = "io.containerd.runc.v2"
	newestConfig  = 4
	tolerance     = api.AnnotationTolerance
)

// planContainerd adds a runtime handler and NRI settings: to a drop-in file with version 3 of the
// configuration, and in place with version 2, because containerd 1.x would replace a plugin's section by the
// drop-in's. imports and disabled_plugins are always edited in place; containerd appends the latter's lists.
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
	t := target{path: main, seed: headline("containerd") + fmt.Sprintf("version = %d\n", format)}
	var p plan
	dir := ""
	if format >= 3 {
		dir = dropInDir(c)
	}
	if dir == "" {
		if err := generated(h, main); err != nil {
			return plan{}, err
		}
	}
	mainTarget := t
	if format >= 3 {
		if dir == "" {
			dir = ownDir(c, main)
			mainTarget = imports(h, t, path.Join(path.Base(dir), dropInPattern))
		}
		t.path, t.dropIn = path.Join(dir, dropIn), true
	}
	if !o.NRIOnly {
		containerd := []string{"plugins", cri, "containerd"}
		t.settings = append(t.settings, setting{at(containerd, "runtimes", Name), handler(c, o.RuntimePath)})
		// containerd 1.x replaces its default handlers by those of the file: without runc, other pods could not start.
		if handlers, _ := lookup(c.Plugins, []string{doctor.PluginCRI, "containerd", "runtimes"}); format < 3 && !hasOther(handlers) {
			t.settings = append(t.settings, setting{at(containerd, "runtimes", "runc"), map[string]any{"runtime_type": shim}})
		}
		if o.SetDefault {
			t.settings = append(t.settings, setting{at(containerd, "default_runtime_name"), Name})
		}
	}
	t.settings = append(t.settings, nriSettings(c, o)...)
	if !o.NRIOnly {
		if err := p.barrier(h, c, o, cri, main, &t); err != nil {
			return plan{}, err
		}
	}
	if len(t.settings) > 0 {
		p.targets = append(p.targets, t)
		if len(mainTarget.settings) > 0 {
			p.targets = append(p.targets, mainTarget)
		}
	}
	if err := p.enablePlugins(h, c); err != nil {
		return plan{}, err
	}
	if doctor.VersionBefore(o.ContainerdVersion, 1, 7, 0) {
		p.notes = append(p.notes, "containerd "+o.ContainerdVersion+" has no NRI: pods get no GPU")
	}
	p.notes = append(p.notes, "run `systemctl restart containerd` (containers continue to run), then `gpuslice doctor`")
	if !o.NRIOnly {
		p.notes = append(p.notes, "a pod without a grant gets no GPU from the runtime handler "+Name)
	}
	p.check = func(after fs.FS) error { return p.seen(after, main, o.ContainerdVersion) }
	return p, nil
}

func at(key []string, rest ...string) []string { return slices.Concat(key, rest) }

func formatVersion(c doctor.Containerd, main, runtime string) (int, error) {
	switch {
	case len(c.Files) == 0 && (runtime == "" || doctor.VersionBefore(runtime, 2, 0, 0)):
		return 2, nil
	case len(c.Files) == 0:
		return 3, nil
	case c.Version < 2:
		return 0, fmt.Errorf("%s has version %d, and gpuslice needs version 2 or newer: `containerd --config %s config migrate` prints it in the newest version", main, max(c.Version, 1), main)
	case c.Version > newestConfig:
		return 0, fmt.Errorf("%s has version %d, and this gpuslice supports none after %d: upgrade gpuslice", main, c.Version, newestConfig)
	}
	return c.Version, nil
}

// dropInDir is a directory of which the main file imports *.toml; empty if there is none.
func dropInDir(c doctor.Containerd) string {
	for _, pattern := range c.Imports {
		dir, file := path.Split(pattern)
		matches := func(name string) bool { ok, err := path.Match(file, name); return ok && err == nil }
		// A pattern "*" would make containerd read the backups, too.
		if matches(dropIn) && file != dropIn && !matches(backupOf(dropIn, nil)) && !strings.ContainsAny(dir, "*?[") {
			return path.Clean(dir)
		}
	}
	return ""
}

func ownDir(c doctor.Containerd, main string) string {
	dir := path.Join(path.Dir(main), "conf.d")
	reads := func(pattern string) bool {
		ok, err := path.Match(pattern, backupOf(path.Join(dir, dropIn), nil))
		return ok && err == nil
	}
	if slices.ContainsFunc(c.Imports, reads) {
		dir = path.Join(path.Dir(main), "gpuslice.d")
	}
	return dir
}

// imports adds a pattern to the main file's imports. It is relative to the main file.
func imports(h fs.FS, main target, pattern string) target {
	tree, _ := readDocument(h, "containerd", main.path)
	list, _ := tree["imports"].([]any)
	main.settings = []setting{{[]string{"imports"}, append(slices.Clone(list), any(pattern))}}
	return main
}

// generated refuses to edit a file that a program writes again.
func generated(h fs.FS, main string) error {
	data, err := readFile(h, main)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !bytes.Contains(bytes.ToUpper(data[:min(len(data), 1024)]), []byte("DO NOT EDIT")) {
		return err
	}
	return fmt.Errorf("%s is a generated file, changes in it would be lost: "+
		"let it import a directory (imports = [\"…/*.toml\"], as newer k3s does), or add the lines to its template (k3s: config.toml.tmpl); "+
		"`gpuslice install containerd --dry-run --config /new.toml` prints them; then set barrier.install=false in the chart", main)
}

// handler copies the default runtime's settings, such as the cgroup driver, with another binary.
func handler(c doctor.Containerd, binary string) map[string]any {
	base := baseHandler(c)
	settings := plain(base, "runtime_engine", "runtime_root")
	settings["runtime_type"] = shim
	options, _ := base["options"].(map[string]any)
	options = plain(options)
	options["BinaryName"] = binary
	settings["options"] = options
	return settings
}

func hasOther(handlers any) bool {
	table, _ := handlers.(map[string]any)
	for name := range table {
		if name != Name {
			return true
		}
	}
	return false
}

// baseHandler is the default runtime's handler if it uses the same shim, else runc's.
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

// plain copies a table's values except empty ones and tables.
func plain(table map[string]any, without ...string) map[string]any {
	values := map[string]any{}
	for k, v := range table {
		set := false
		switch v := v.(type) {
		case string:
			set = v != ""
		case bool:
			set = v
		case int64:
			set = v != 0
		case []any:
			set = len(v) > 0 && !slices.ContainsFunc(v, func(e any) bool { _, isTable := e.(map[string]any); return isTable })
		}
		if set && !slices.Contains(without, k) {
			values[k] = v
		}
	}
	return values
}

// nriSettings returns missing settings that `gpuslice doctor` requires. Values that work are kept.
func nriSettings(c doctor.Containerd, o Options) (settings []setting) {
	runtime := o.ContainerdVersion
	if doctor.VersionBefore(runtime, 1, 7, 0) {
		return nil
	}
	want := func(value any, good func(have any) bool, key ...string) {
		have, _ := lookup(c.Plugins, append([]string{doctor.PluginNRI}, key...))
		if !good(have) {
			settings = append(settings, setting{append([]string{"plugins", doctor.PluginNRI}, key...), value})
		}
	}
	is := func(value any) func(any) bool { return func(have any) bool { return have == value } }
	isText := func(have any) bool { return have != nil && have != "" }
	notTrue := func(have any) bool { return have != true }
	want(false, is(false), "disable")
	want(false, notTrue, "disable_connections")
	want("5s", isText, "plugin_registration_timeout")
	want("2s", validTimeout, "plugin_request_timeout")
	if !doctor.VersionBefore(runtime, 2, 2, 0) {
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

func validTimeout(have any) bool {
	text, _ := have.(string)
	d, err := time.ParseDuration(text)
	return err == nil && d >= time.Second && d <= 10*time.Second
}

func (p *plan) enablePlugins(h fs.FS, c doctor.Containerd) error {
	for _, file := range c.Files {
		tree, err := readDocument(h, "containerd", file)
		if err != nil {
			return err
		}
		disabled, _ := tree["disabled_plugins"].([]any)
		if slices.ContainsFunc(disabled, func(v any) bool { return v == "cri" || v == doctor.PluginCRIv2 || v == doctor.PluginCRI }) {
			p.notes = append(p.notes, file+" disables CRI (disabled_plugins), as Docker's packages do: the kubelet can't use this containerd, and the handler has no effect")
		}
		isNRI := func(v any) bool { return v == doctor.PluginNRI }
		if !slices.ContainsFunc(disabled, isNRI) {
			continue
		}
		s := setting{[]string{"disabled_plugins"}, slices.DeleteFunc(slices.Clone(disabled), isNRI)}
		if i := slices.IndexFunc(p.targets, func(t target) bool { return t.path == file }); i >= 0 {
			p.targets[i].settings = append(p.targets[i].settings, s)
		} else {
			p.targets = append(p.targets, target{path: file, settings: []setting{s}})
		}
	}
	return nil
}

func (p plan) seen(after fs.FS, main, runtime string) error {
	c, err := doctor.ReadContainerd(after, main, runtime)
	if err != nil {
		return err
	}
	for _, t := range p.targets {
		for _, pattern := range c.Imports {
			if ok, _ := path.Match(pattern, backupOf(t.path, nil)); ok {
				return fmt.Errorf("%s imports %s: containerd would read the backups of %s, too: import a pattern that ends in .toml", main, pattern, t.path)
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
			if have, _ := lookup(c.Plugins, key); !includes(have, s.value) {
				return fmt.Errorf("%s in %s has no effect: a file that containerd reads later sets it to %v (it reads %s): change that file, or set --config",
					dotted(s.key), t.path, have, strings.Join(c.Files, ", "))
			}
		}
	}
	return nil
}

// includes reports whether a value is as wanted; a table may have more keys.
func includes(have, want any) bool {
	table, ok := want.(map[string]any)
	if !ok {
		return equal(have, want)
	}
	in, _ := have.(map[string]any)
	for k, v := range table {
		if !includes(in[k], v) {
			return false
		}
	}
	return true
}

// barrier puts gpuslice-runtime in front of NVIDIA's runtime in each handler: a pod without a grant then gets no GPU, also
// while the agent is down.
func (p *plan) barrier(h fs.FS, c doctor.Containerd, o Options, cri, main string, t *target) error {
	nvidia := c.Handlers(doctor.IsNvidiaRuntime)
	ours := c.Handlers(doctor.IsOurRuntime)
	delete(ours, Name)
	if o.RequireNvidia && len(nvidia)+len(ours) == 0 {
		what := "no runtime handler in " + main + ", or in the files that it imports, runs NVIDIA's container runtime"
		if len(c.Files) == 0 {
			what = main + " does not exist"
		}
		return fmt.Errorf("%s: set --config to the configuration file that containerd reads (the chart's barrier.containerdConfig); "+
			"without containerd set the chart's barrier.install=false and use the second way to close the GPUs (docs/INSTALL.md)", what)
	}
	handlers := slices.AppendSeq(slices.Collect(maps.Keys(nvidia)), maps.Keys(ours))
	slices.Sort(handlers)
	for _, handler := range handlers {
		t.settings = append(t.settings, setting{[]string{"plugins", cri, "containerd", "runtimes", handler, "options", "BinaryName"}, o.RuntimePath})
	}
	if len(nvidia) == 0 {
		return nil
	}
	p.runtimeConfig(h, o, lowest(nvidia))
	p.notes = append(p.notes, "a pod without a grant gets no GPU from the runtime handlers "+strings.Join(handlers, ", ")+
		", whether the agent runs or not. Pods in the exemptNamespaces of "+api.RuntimeConfig+" get what they request")
	return nil
}

// lowest prefers the variant of NVIDIA's runtime that reads its mode from its configuration.
func lowest(nvidia map[string]string) string {
	binaries := slices.Sorted(maps.Values(nvidia))
	for _, binary := range binaries {
		if path.Ext(binary) == "" {
			return binary
		}
	}
	return binaries[0]
}

// runtimeConfig writes runtime.yaml if it does not exist; else a note lists what it must contain.
func (p *plan) runtimeConfig(h fs.FS, o Options, nvidia string) {
	text := headline("containerd") + fmt.Sprintf(`# gpuslice-runtime calls this container runtime of NVIDIA.
nvidiaRuntime: %s
# Pods in these namespaces get the GPUs that they request from NVIDIA's runtime, whole GPUs too.
# The agent's namespace must be one of them.
exemptNamespaces: [%s]
# The agent's --state-dir.
stateDir: %s
`, nvidia, strings.Join(o.ExemptNamespaces, ", "), o.StateDir)
	data, err := readFile(h, api.RuntimeConfig)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.targets = append(p.targets, target{path: api.RuntimeConfig, whole: []byte(text)})
		return
	case err == nil:
		var have request.Config
		if have, err = request.Parse(api.RuntimeConfig, data); err == nil &&
			have.NvidiaRuntime == nvidia && have.StateDir == o.StateDir && hasAll(have.ExemptNamespaces, o.ExemptNamespaces) {
			return
		}
	}
	p.notes = append(p.notes, fmt.Sprintf("%s exists and was not changed. It must contain nvidiaRuntime: %s, stateDir: %s and exemptNamespaces: [%s]; otherwise the agent's own pod gets no GPU",
		api.RuntimeConfig, nvidia, o.StateDir, strings.Join(o.ExemptNamespaces, ", ")))
}

func hasAll(have, want []string) bool {
	return !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(have, name) })
}
