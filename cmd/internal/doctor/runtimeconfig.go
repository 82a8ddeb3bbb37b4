package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// The plugins of containerd whose settings matter, by version 3's names.
const (
	pluginNRI = "io.containerd.nri.v1.nri"
	pluginCRI = "io.containerd.cri.v1.runtime"
	// pluginCRIv2 is pluginCRI's name in a configuration of version 2.
	pluginCRIv2 = "io.containerd.grpc.v1.cri"
)

// runtimeConfig is containerd's configuration as its files have it, imports
// merged. What they leave out has the version's default.
type runtimeConfig struct {
	path    string
	files   []string // that were read; none: containerd runs on its defaults
	version int      // of the main file's format
	err     error

	state    string   // containerd's state directory; empty: not set
	disabled []string // plugins
	plugins  map[string]any
	runtime  version
}

// configFile is one file of containerd's configuration.
type configFile struct {
	Version  int            `toml:"version"`
	Imports  []string       `toml:"imports"`
	State    string         `toml:"state"`
	Disabled []string       `toml:"disabled_plugins"`
	Plugins  map[string]any `toml:"plugins"`
}

// readRuntimeConfig reads containerd's configuration as containerd does (LoadConfig
// in its cmd/containerd/server/config): the main file, then what it imports, then
// what those import, a later one winning.
func readRuntimeConfig(h fs.FS, main string, runtime version) runtimeConfig {
	c := runtimeConfig{path: main, runtime: runtime, plugins: map[string]any{}}
	pending := []string{main}
	for len(pending) > 0 {
		file := pending[0]
		pending = pending[1:]
		if slices.Contains(c.files, file) {
			continue
		}
		data, err := fs.ReadFile(h, name(file))
		if errors.Is(err, fs.ErrNotExist) && file == main {
			return c
		}
		if err != nil {
			c.err = err
			return c
		}
		var f configFile
		if err := toml.Unmarshal(data, &f); err != nil {
			c.err = fmt.Errorf("%s: %w", file, err)
			return c
		}
		if file == main {
			c.version = f.Version
		}
		c.files = append(c.files, file)
		c.merge(f)
		for _, pattern := range f.Imports {
			imported, err := resolveImport(h, file, pattern)
			if err != nil {
				c.err = fmt.Errorf("%s: imports %q: %w", file, pattern, err)
				return c
			}
			pending = append(pending, imported...)
		}
	}
	return c
}

// resolveImport is the files of one entry of imports.
func resolveImport(h fs.FS, file, pattern string) ([]string, error) {
	if !path.IsAbs(pattern) {
		pattern = path.Join(path.Dir(file), pattern)
	}
	pattern = path.Clean(pattern)
	if !strings.Contains(pattern, "*") {
		return []string{pattern}, nil
	}
	matches, err := fs.Glob(h, name(pattern))
	for i := range matches {
		matches[i] = "/" + matches[i]
	}
	return matches, err
}

// merge puts a file over what was read before.
func (c *runtimeConfig) merge(f configFile) {
	c.disabled = append(c.disabled, f.Disabled...)
	if f.State != "" {
		c.state = f.State
	}
	if old, ok := f.Plugins[pluginCRIv2]; ok && f.Version < 3 {
		f.Plugins[pluginCRI] = old
	}
	if c.runtime.before(2, 0, 0) {
		maps.Copy(c.plugins, f.Plugins) // containerd 1.7 replaces a plugin's whole section
		return
	}
	mergeTables(c.plugins, f.Plugins)
}

// mergeTables merges tables by key, at every depth; values and lists are replaced.
func mergeTables(to, from map[string]any) {
	for key, value := range from {
		inner, isTable := value.(map[string]any)
		have, hasTable := to[key].(map[string]any)
		if isTable && hasTable {
			mergeTables(have, inner)
			continue
		}
		to[key] = value
	}
}

// lookup finds a plugin's setting; nil if it isn't there.
func (c runtimeConfig) lookup(plugin string, keys ...string) any {
	var at any = c.plugins[plugin]
	for _, key := range keys {
		table, _ := at.(map[string]any)
		at = table[key]
	}
	return at
}

// setting is a setting of the type of its default.
func setting[T any](c runtimeConfig, fallback T, plugin string, keys ...string) T {
	if v, ok := c.lookup(plugin, keys...).(T); ok {
		return v
	}
	return fallback
}

func (c runtimeConfig) nriEnabled() bool {
	// Since 2.0 it is on without being asked for.
	return !setting(c, c.runtime.before(2, 0, 0), pluginNRI, "disable") && !slices.Contains(c.disabled, pluginNRI)
}

func (c runtimeConfig) nriSocket() string {
	return setting(c, "/var/run/nri/nri.sock", pluginNRI, "socket_path")
}

// stateDir is containerd's state directory.
func (c runtimeConfig) stateDir() string {
	if c.state == "" {
		return "/run/containerd"
	}
	return c.state
}

// requestTimeout is how long NRI waits for a plugin.
func (c runtimeConfig) requestTimeout() (time.Duration, error) {
	return time.ParseDuration(setting(c, "2s", pluginNRI, "plugin_request_timeout"))
}

func (c runtimeConfig) requires(plugin string) bool {
	return slices.Contains(setting(c, []any(nil), pluginNRI, "default_validator", "required_plugins"), any(plugin))
}

func (c runtimeConfig) defaultHandler() string {
	return setting(c, "runc", pluginCRI, "containerd", "default_runtime_name")
}

// handlers returns the paths of the runtime handlers' programs that satisfy is, by handler.
func (c runtimeConfig) handlers(is func(binary string) bool) map[string]string {
	found := map[string]string{}
	for handler := range setting(c, map[string]any(nil), pluginCRI, "containerd", "runtimes") {
		binary := setting(c, "", pluginCRI, "containerd", "runtimes", handler, "options", "BinaryName")
		if is(binary) {
			found[handler] = binary
		}
	}
	return found
}

// IsNvidiaRuntime says whether a program is NVIDIA's container runtime, by its name.
func IsNvidiaRuntime(binary string) bool { return strings.Contains(path.Base(binary), "nvidia") }

// IsOurRuntime says whether a program is gpuslice-runtime, by its name.
func IsOurRuntime(binary string) bool { return path.Base(binary) == "gpuslice-runtime" }

// nvidiaHandlers are the runtime handlers that are nvidia-container-runtime.
func (c runtimeConfig) nvidiaHandlers() []string {
	return slices.Sorted(maps.Keys(c.handlers(IsNvidiaRuntime)))
}

// formatVersion is the main file's, or the one that a new file should have.
func (c runtimeConfig) formatVersion() int {
	switch {
	case len(c.files) > 0:
		return c.version
	case c.runtime.before(2, 0, 0):
		return 2
	}
	return 3
}

// fix says to put lines into containerd's configuration.
func (c runtimeConfig) fix(lines ...string) []string {
	if len(c.files) == 0 {
		lines = append([]string{fmt.Sprintf("version = %d", c.formatVersion())}, lines...)
	}
	fix := []string{"in " + c.path + " (in its own [table] of that name, if it has one), then `systemctl restart containerd`:"}
	for _, line := range lines {
		fix = append(fix, "  "+line)
	}
	return fix
}

// notContainerd ends a check of containerd's configuration where there is none.
func (e *exam) notContainerd(v *verdict) bool {
	switch {
	case e.runtime.name == "cri-o":
		v.ok("not checked: the node's runtime is CRI-O")
	case e.config.err != nil:
		v.fail("unknown: containerd's configuration can't be read", "see runtime-config")
	default:
		return false
	}
	return true
}

// checkRuntimeConfig says where containerd's configuration is, and whether it is one
// that can be read.
func checkRuntimeConfig(_ context.Context, e *exam, v *verdict) {
	c := e.config
	switch {
	case e.runtime.name == "cri-o":
		v.ok("not checked: the node's runtime is CRI-O, whose NRI is on since 1.30")
	case c.err != nil:
		v.fail(oneLine(c.err), "fix the file: containerd itself can't use it, or run gpuslice doctor as root")
	case len(c.files) == 0:
		v.ok(c.path + " is not there: containerd runs on its defaults (if its configuration is elsewhere: --runtime-config)")
	case c.version < 2:
		v.fail(fmt.Sprintf("%s is of version %d", c.path, c.version), "containerd --config "+c.path+" config migrate  # prints it in the newest version")
	default:
		v.ok(fmt.Sprintf("%s (version %d)", strings.Join(c.files, ", "), c.version))
	}
	for _, off := range []string{"cri", pluginCRIv2, pluginCRI} {
		if slices.Contains(c.disabled, off) {
			v.fail("the kubelet can't use containerd: "+off+" is disabled", "take "+off+" out of disabled_plugins in "+strings.Join(c.files, " or ")+", then `systemctl restart containerd`")
		}
	}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
