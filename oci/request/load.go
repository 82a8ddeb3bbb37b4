package request

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
)

// Load reads the operator's config. Where there is no file the config is the default one.
//
// Everything that is wrong with the file is told at once, a mistake a line, each as
// "FILE:LINE: KEY: what is wrong": unknown keys, keys that are there twice, values of
// another type, values that are impossible by themselves or beside others. A file that
// others than root can write, or put another in the place of, is refused: they would set
// their own limits.
func Load(path string) (Config, error) { return load(path, rootOf("/proc")) }

// load is Load with the owners that are as good as root.
func load(path string, root owners) (Config, error) {
	if !filepath.IsAbs(path) {
		return Config{}, fmt.Errorf("config %s: is not an absolute path", path)
	}
	// A link that leads nowhere is a mistake, and no file is none.
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

// Parse reads a config's content. The path is for messages.
func Parse(path string, data []byte) (Config, error) {
	c := DefaultConfig()
	c.Path = path
	d := &decoder{path: path, lines: map[string]int{}}
	if root := d.parse(data); root != nil {
		object(d, "", root, configFields(), &c)
	}
	if len(d.errs) == 0 {
		c.check(d)
	}
	if err := errors.Join(d.errs...); err != nil {
		return Config{}, err
	}
	return c, nil
}

// check finds values that don't go together.
func (c Config) check(d *decoder) {
	if len(c.Runtimes) == 0 {
		d.fail(d.lines["runtimes"], "runtimes", "is empty: name one, or leave the key out")
	}
	if len(c.CDISpecDirs) == 0 && c.DeviceInjection != "envvar" {
		d.fail(d.lines["cdiSpecDirs"], "cdiSpecDirs", "is empty: name a directory, or set deviceInjection: envvar")
	}
	if c.AllowWholeGPUs && (c.Maximum.Memory.limits() || c.Maximum.CorePercent > 0 && c.Maximum.CorePercent < 100) {
		d.fail(d.lines["allowWholeGPUs"], "allowWholeGPUs", "is true, and maximum (line %d) allows less than a whole GPU: set one of them", d.lines["maximum"])
	}
	c.checkSlice(d, "default", c.Default)
	for _, name := range sortedKeys(c.Slices) {
		full := "slices." + name
		if c.Slices[name].Memory.IsZero() {
			d.fail(d.lines[full], full, "says no memory: add memory")
		}
		c.checkSlice(d, full, c.Slices[name])
	}
}

// limits says whether a maximum is less than a whole GPU. That of MiB depends on it.
func (s Size) limits() bool { return s.MiB != 0 || s.Percent != 0 && s.Percent < 100 }

// checkSlice finds what no container could get, for it is more than the maximum. A size
// and a percentage are compared when the GPU is known.
func (c Config) checkSlice(d *decoder, key string, s Slice) {
	most := c.Maximum
	over := func(name string, value, limit any) {
		d.fail(d.lines[key+"."+name], key+"."+name, "%v is more than maximum.%s, which is %v (line %d)", value, name, limit, d.lines["maximum."+name])
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
			d.fail(d.lines[key+".devices"], key+".devices", "GPU %s is not in devices (line %d)", name, d.lines["devices"])
		}
	}
}

// mayAllow says whether a name can be of a GPU that may be used, or of a MIG device of
// one. An index and a UUID, or a MIG device's and a GPU's, are compared when the GPUs are
// known.
func (c Config) mayAllow(name string) bool {
	index := isIndex(name)
	gpu, _, _ := strings.Cut(name, ":")
	return slices.ContainsFunc(c.Devices, func(allowed string) bool {
		return allowed == name || allowed == gpu || isIndex(allowed) != index ||
			grant.IsMIG(name) && !grant.IsMIG(allowed)
	})
}
