package request

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Load reads the operator's config; without a file it is the default one. It rejects a file that users
// other than root can change. Errors list all mistakes, one per line: "FILE:LINE: KEY: text".
func Load(path string) (Config, error) { return load(path, rootOf("/proc")) }

func load(path string, root owners) (Config, error) {
	if !filepath.IsAbs(path) {
		return Config{}, fmt.Errorf("config %s: is not an absolute path", path)
	}
	// Lstat: a dangling link is an error.
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		c := DefaultConfig()
		c.Path = path
		return c, nil
	}
	data, err := readTrusted(path, root)
	if err != nil {
		return Config{}, fmt.Errorf("config %s: %w", path, err)
	}
	return Parse(path, data)
}

// Parse reads the content of a config. The path is used in messages.
func Parse(path string, data []byte) (Config, error) {
	c := DefaultConfig()
	c.Path = path
	d := newDocument(path)
	d.decode(data, &c)
	for _, check := range []func(*document){c.checkValues, c.checkRelations} {
		if len(d.errs) == 0 {
			check(d)
		}
	}
	if err := errors.Join(d.errs...); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (c Config) checkValues(d *document) {
	for _, v := range []struct {
		key    string
		values []string
		check  func(string) error
	}{
		{"stateDir", []string{c.StateDir}, checkPath},
		{"libraryDir", []string{c.LibraryDir}, checkPath},
		{"nodeFile", []string{c.NodeFile}, checkPath},
		{"nvmlLibrary", []string{c.NVMLLibrary}, checkNotEmpty},
		{"nvidiaRuntime", []string{c.NvidiaRuntime}, checkRuntime},
		{"limiterMode", []string{c.LimiterMode}, oneOf("auto", "preload", "library")},
		{"memoryEnforcement", []string{c.MemoryEnforcement}, oneOf("limiter", "native", "native+limiter", "auto")},
		{"corePolicy", []string{c.CorePolicy}, oneOf("default", "force", "disable")},
		{"deviceInjection", []string{c.DeviceInjection}, oneOf("auto", "cdi", "envvar")},
		{"cdiSpecDirs", c.CDISpecDirs, checkPath},
		{"runtimes", c.Runtimes, checkRuntime},
		{"exemptNamespaces", c.ExemptNamespaces, checkNamespace},
		{"devices", c.Devices, checkDevice},
	} {
		n := d.values[v.key]
		if n == nil {
			continue // the default
		}
		for i, value := range v.values {
			line := n.Line
			if i < len(n.Content) {
				line = n.Content[i].Line
			}
			if err := v.check(value); err != nil {
				d.fail(line, v.key, "%v", err)
			} else if slices.Contains(v.values[:i], value) {
				d.fail(line, v.key, "%s is listed twice: keep one", quote.Short(value))
			}
		}
	}
	for _, v := range []struct {
		key                string
		value, least, most int
	}{
		{"deviceSplitCount", c.DeviceSplitCount, 1, 1000}, // the ranges of the agent's options
		{"contextMemoryMiB", c.ContextMemoryMiB, -1, 16384},
		{"maximum.devices", c.Maximum.Devices, 1, grant.MaxShares},
	} {
		// The text is compared because YAML reads 010 as 8 and 1.9 as 1.
		if n := d.values[v.key]; n != nil && (n.Value != strconv.Itoa(v.value) || v.value < v.least || v.value > v.most) {
			d.failAt(v.key, "%s must be a whole number from %d to %d", quote.Short(n.Value), v.least, v.most)
		}
	}
	if s := c.MemoryScaling; !(s >= 0.01 && s <= 100) { // false for NaN too
		d.failAt("memoryScaling", "%v must be a number from 0.01 to 100", s)
	}
	if d.values["default.priority"] != nil {
		d.failAt("default.priority", "no such key: only slices have a priority")
	}
	for _, name := range sortedKeys(c.Slices) {
		if !matches(sliceName, name) {
			d.failAt("slices."+name, "%s is not a valid slice name: use 1 to 63 letters and digits, with _ . - between them", quote.Short(name))
		}
	}
}

func (c Config) checkRelations(d *document) {
	if len(c.Runtimes) == 0 {
		d.failAt("runtimes", "is empty: add a runtime, or remove the key")
	}
	if len(c.CDISpecDirs) == 0 && c.DeviceInjection != "envvar" {
		d.failAt("cdiSpecDirs", "is empty: add a directory, or set deviceInjection: envvar")
	}
	if c.AllowWholeGPUs && (c.Maximum.Memory.Limits() || c.Maximum.CorePercent > 0 && c.Maximum.CorePercent < 100) {
		d.failAt("allowWholeGPUs", "is true, but maximum (line %d) is less than a whole GPU: set one of them", d.line("maximum"))
	}
	c.checkSlice(d, "default", c.Default)
	for _, name := range sortedKeys(c.Slices) {
		key := "slices." + name
		if c.Slices[name].Memory.IsZero() {
			d.failAt(key, "has no memory: add memory")
		}
		c.checkSlice(d, key, c.Slices[name])
	}
}

// checkSlice rejects more than the maximum, except a size against a percentage, which needs the GPU.
func (c Config) checkSlice(d *document, key string, s Slice) {
	most := c.Maximum
	over := func(name string, value, limit any) {
		d.failAt(key+"."+name, "%v is more than maximum.%s, which is %v (line %d)", value, name, limit, d.line("maximum."+name))
	}
	m, limit := s.Memory, most.Memory
	if limit.MiB != 0 && m.MiB > limit.MiB || limit.Percent != 0 && m.Percent > limit.Percent {
		over("memory", m, limit)
	}
	if most.CorePercent != 0 && s.CorePercent > most.CorePercent {
		over("cores", s.CorePercent, most.CorePercent)
	}
	if n := max(s.Devices.Count, len(s.Devices.Names)); most.Devices != 0 && n > most.Devices {
		over("devices", s.Devices, most.Devices)
	}
	for _, name := range s.Devices.Names {
		if len(c.Devices) > 0 && !c.mayAllow(name) {
			d.failAt(key+".devices", "GPU %s is not in devices (line %d)", name, d.line("devices"))
		}
	}
}

// mayAllow reports whether a name can mean an allowed GPU, as far as that is known without the GPUs.
func (c Config) mayAllow(name string) bool {
	index := isIndex(name)
	gpu, _, _ := strings.Cut(name, ":")
	return slices.ContainsFunc(c.Devices, func(allowed string) bool {
		return allowed == name || allowed == gpu || isIndex(allowed) != index ||
			grant.IsMIG(name) && !grant.IsMIG(allowed)
	})
}

const (
	// a CDI device's name, without characters that shells interpret
	sliceName     = `^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`
	namespaceName = `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
)

func matches(pattern, text string) bool { return regexp.MustCompile(pattern).MatchString(text) }

func checkDevice(name string) error {
	if err := validateName(name); err != nil {
		return fmt.Errorf("%s %w", quote.Short(name), err)
	}
	return nil
}

func checkNamespace(name string) error {
	if !matches(namespaceName, name) {
		return fmt.Errorf("%s is not the name of a Kubernetes namespace", quote.Short(name))
	}
	return nil
}

func checkPath(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("%s must be an absolute path without \".\" and \"..\" elements", quote.Short(path))
	}
	return nil
}

func checkRuntime(runtime string) error {
	if filepath.Base(runtime) == "gpuslice-runtime" {
		return fmt.Errorf("%s would call itself: set a low-level runtime such as runc", quote.Short(runtime))
	}
	if strings.Contains(runtime, "/") {
		return checkPath(runtime)
	}
	return checkNotEmpty(runtime)
}

func checkNotEmpty(text string) error {
	if strings.TrimSpace(text) == "" {
		return errors.New("is empty: remove the key for the default")
	}
	return nil
}

func oneOf(words ...string) func(string) error {
	return func(value string) error {
		if !slices.Contains(words, value) {
			return fmt.Errorf("%s must be one of %s", quote.Short(value), strings.Join(words, ", "))
		}
		return nil
	}
}
