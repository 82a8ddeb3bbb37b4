package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type runtimeFacts struct {
	name    string // in CRI: "containerd", "cri-o"
	text    string
	version version
	err     error // then the others are empty
}

// version is a runtime's major, minor and patch version; the zero value is unknown.
type version [3]int

func (v version) known() bool { return v != version{} }

// before compares versions; an unknown one is never before.
func (v version) before(major, minor, patch int) bool {
	return v.known() && slices.Compare(v[:], []int{major, minor, patch}) < 0
}

// VersionBefore reports whether a version is older; an unknown one is not.
func VersionBefore(text string, major, minor, patch int) bool {
	_, v := parseVersion(text)
	return v.before(major, minor, patch)
}

// versionPattern finds "v1.7.24~ds1" in the output of `containerd --version`.
var versionPattern = regexp.MustCompile(`\bv?(\d{1,4})\.(\d{1,4})\.(\d{1,4})[^\s]*`)

func parseVersion(text string) (shown string, v version) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil {
		return "", v
	}
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1])
	}
	return m[0], v
}

func findRuntime(ctx context.Context, h Host, socket string) runtimeFacts {
	name, text, err := h.RuntimeVersion(ctx, socket)
	if err != nil {
		name = "containerd"
		var otherErr error
		text, otherErr = h.Output(ctx, "containerd", "--version")
		if otherErr != nil {
			return runtimeFacts{err: errors.Join(err, otherErr)}
		}
	}
	shown, v := parseVersion(text)
	if !v.known() {
		return runtimeFacts{name: name, err: fmt.Errorf("invalid version %q", text)}
	}
	return runtimeFacts{name: name, text: shown, version: v}
}

// checkRuntime checks which fail-closed layers (docs/ARCHITECTURE.md) the runtime supports.
func checkRuntime(_ context.Context, e *exam, v *verdict) {
	r := e.runtime
	switch {
	case r.err != nil:
		v.fail("no container runtime found: "+oneLine(r.err), "start containerd, or set --runtime-socket")
	case r.name != "containerd" && r.name != "cri-o":
		v.fail(r.name+" "+r.text+": not supported by gpuslice", "use containerd 2.2 or newer")
	default:
		e.checkSupport(v)
	}
}

// checkSupport names the node's row in the table of supported runtimes. Layers that no version of this runtime has are
// no reason for a warning.
func (e *exam) checkSupport(v *verdict) {
	r := e.runtime
	shown, newest := "containerd "+r.text, "upgrade containerd to 2.2 or newer (at least 1.7.26 or 2.0.3)"
	if r.name == "cri-o" {
		shown, newest = "CRI-O "+r.text, "upgrade CRI-O to 1.34 or newer"
	}
	row, known := supportOf(r)
	switch lacks := row.lacks(); {
	case !known:
		v.fail(shown+" has no NRI that gpuslice supports", newest)
	case !row.validates:
		v.warn(fmt.Sprintf("%s (row %q of the supported runtimes): %s", shown, row.versions, strings.Join(lacks, "; ")), newest)
	case len(lacks) > 0:
		v.ok(fmt.Sprintf("%s (row %q of the supported runtimes): a container is refused if its request is lost; but %s", shown, row.versions, strings.Join(lacks, "; ")))
	default:
		v.ok(fmt.Sprintf("%s (row %q of the supported runtimes): supports all fail-closed layers", shown, row.versions))
	}
}

// The names of containerd's plugins in version 3 of the configuration.
const (
	PluginNRI   = "io.containerd.nri.v1.nri"
	PluginCRI   = "io.containerd.cri.v1.runtime"
	PluginCRIv2 = "io.containerd.grpc.v1.cri" // in version 2
)

// Containerd is containerd's configuration with its imports, without defaults.
type Containerd struct {
	// Files that were read, the main file first; none: containerd uses its defaults.
	Files   []string
	Version int // of the main file
	// Imports are the main file's, as absolute patterns.
	Imports []string
	// Plugins are the merged sections of all plugins, with the names of version 3.
	Plugins map[string]any

	path     string
	err      error
	state    string
	disabled []string
	runtime  version
}

type configFile struct {
	Version  int            `toml:"version"`
	Imports  []string       `toml:"imports"`
	State    string         `toml:"state"`
	Disabled []string       `toml:"disabled_plugins"`
	Plugins  map[string]any `toml:"plugins"`
}

// ReadContainerd reads a configuration with its imports. An unknown version merges them as 2.x.
func ReadContainerd(h fs.FS, main, version string) (Containerd, error) {
	_, runtime := parseVersion(version)
	c := readContainerd(h, main, runtime)
	if c.err != nil {
		return Containerd{}, fmt.Errorf("read containerd's configuration: %w", c.err)
	}
	return c, nil
}

// readContainerd reads files as LoadConfig of containerd (cmd/containerd/server/config): the last file wins.
func readContainerd(h fs.FS, main string, runtime version) Containerd {
	c := Containerd{path: main, runtime: runtime, Plugins: map[string]any{}}
	pending := []string{main}
	for len(pending) > 0 {
		file := pending[0]
		pending = pending[1:]
		if slices.Contains(c.Files, file) {
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
		for i, pattern := range f.Imports {
			if !path.IsAbs(pattern) {
				pattern = path.Join(path.Dir(file), pattern)
			}
			f.Imports[i] = path.Clean(pattern)
		}
		if file == main {
			c.Version, c.Imports = f.Version, f.Imports
		}
		c.Files = append(c.Files, file)
		c.merge(f)
		for _, pattern := range f.Imports {
			imported, err := resolveImport(h, pattern)
			if err != nil {
				c.err = fmt.Errorf("%s: imports %q: %w", file, pattern, err)
				return c
			}
			pending = append(pending, imported...)
		}
	}
	return c
}

func resolveImport(h fs.FS, pattern string) ([]string, error) {
	if !strings.Contains(pattern, "*") {
		return []string{pattern}, nil
	}
	matches, err := fs.Glob(h, name(pattern))
	for i := range matches {
		matches[i] = "/" + matches[i]
	}
	return matches, err
}

func (c *Containerd) merge(f configFile) {
	c.disabled = append(c.disabled, f.Disabled...)
	if f.State != "" {
		c.state = f.State
	}
	if old, ok := f.Plugins[PluginCRIv2]; ok && f.Version < 3 {
		f.Plugins[PluginCRI] = old
	}
	if c.runtime.before(2, 0, 0) {
		maps.Copy(c.Plugins, f.Plugins) // the whole section
		return
	}
	mergeTables(c.Plugins, f.Plugins)
}

// mergeTables merges tables recursively; values and lists are replaced.
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

func setting[T any](c Containerd, fallback T, key ...string) T {
	value, _, _ := unstructured.NestedFieldNoCopy(c.Plugins, key...)
	if v, ok := value.(T); ok {
		return v
	}
	return fallback
}

func (c Containerd) nriEnabled() bool {
	return !setting(c, c.runtime.before(2, 0, 0), PluginNRI, "disable") && !slices.Contains(c.disabled, PluginNRI)
}

func (c Containerd) nriSocket() string {
	return setting(c, "/var/run/nri/nri.sock", PluginNRI, "socket_path")
}

func (c Containerd) stateDir() string {
	if c.state == "" {
		return "/run/containerd"
	}
	return c.state
}

func (c Containerd) requestTimeout() (time.Duration, error) {
	return time.ParseDuration(setting(c, "2s", PluginNRI, "plugin_request_timeout"))
}

func (c Containerd) requires(plugin string) bool {
	return slices.Contains(setting(c, []any(nil), PluginNRI, "default_validator", "required_plugins"), any(plugin))
}

func (c Containerd) defaultHandler() string {
	return setting(c, "runc", PluginCRI, "containerd", "default_runtime_name")
}

// Handlers returns the programs that satisfy is, by runtime handler.
func (c Containerd) Handlers(is func(binary string) bool) map[string]string {
	found := map[string]string{}
	for handler := range setting(c, map[string]any(nil), PluginCRI, "containerd", "runtimes") {
		binary := setting(c, "", PluginCRI, "containerd", "runtimes", handler, "options", "BinaryName")
		if is(binary) {
			found[handler] = binary
		}
	}
	return found
}

// IsNvidiaRuntime tests a program's name.
func IsNvidiaRuntime(binary string) bool { return strings.Contains(path.Base(binary), "nvidia") }

// IsOurRuntime tests a program's name.
func IsOurRuntime(binary string) bool { return path.Base(binary) == "gpuslice-runtime" }

func (c Containerd) nvidiaHandlers() []string {
	return slices.Sorted(maps.Keys(c.Handlers(IsNvidiaRuntime)))
}

func (c Containerd) formatVersion() int {
	switch {
	case len(c.Files) > 0:
		return c.Version
	case c.runtime.before(2, 0, 0):
		return 2
	}
	return 3
}

func (c Containerd) fix(lines ...string) []string {
	if len(c.Files) == 0 {
		lines = append([]string{fmt.Sprintf("version = %d", c.formatVersion())}, lines...)
	}
	fix := []string{"in " + c.path + " (in the [table] of that name, if it exists), then `systemctl restart containerd`:"}
	for _, line := range lines {
		fix = append(fix, "  "+line)
	}
	return fix
}

func (e *exam) notContainerd(v *verdict) bool {
	switch {
	case e.runtime.name == "cri-o":
		v.ok("not checked: the node's runtime is CRI-O")
	case e.config.err != nil:
		v.fail("not checked: containerd's configuration can't be read", "see the check runtime-config")
	default:
		return false
	}
	return true
}

func checkRuntimeConfig(_ context.Context, e *exam, v *verdict) {
	c := e.config
	switch {
	case e.runtime.name == "cri-o":
		v.ok("not checked: the node's runtime is CRI-O, which enables NRI since 1.30")
	case c.err != nil:
		v.fail(oneLine(c.err), "fix the file, which containerd can't read either, or run gpuslice doctor as root")
	case len(c.Files) == 0:
		v.ok(c.path + " not found: containerd uses its defaults (set --runtime-config if the file has another path)")
	case c.Version < 2:
		v.fail(fmt.Sprintf("%s has version %d", c.path, c.Version), "containerd --config "+c.path+" config migrate  # prints it in the newest version")
	default:
		v.ok(fmt.Sprintf("%s (version %d)", strings.Join(c.Files, ", "), c.Version))
	}
	for _, off := range []string{"cri", PluginCRIv2, PluginCRI} {
		if slices.Contains(c.disabled, off) {
			v.fail("the kubelet can't use containerd: plugin "+off+" is disabled", "remove "+off+" from disabled_plugins in "+strings.Join(c.Files, " or ")+", then `systemctl restart containerd`")
		}
	}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
