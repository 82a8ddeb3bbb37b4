package doctor

import (
	"fmt"
	"io/fs"
	"path"

	"github.com/pelletier/go-toml/v2"
)

// Containerd is containerd's configuration as containerd reads it.
type Containerd struct {
	// Files that were read, the main file first; none: it isn't there, and
	// containerd runs on its defaults.
	Files []string
	// Version is the main file's.
	Version int
	// Imports are the main file's, as absolute patterns.
	Imports []string
	// Plugins are the plugins' sections of all files, merged. CRI's is called as in
	// version 3, whatever the files' version is.
	Plugins map[string]any
}

// The plugins that [Containerd.Plugins] may name, and CRI's name in files of version 2.
const (
	PluginNRI   = pluginNRI
	PluginCRI   = pluginCRI
	PluginCRIv2 = pluginCRIv2
)

// ReadContainerd reads a configuration with all that it imports, as that version of
// containerd merges it ("1.7.24"; empty if it isn't known: as 2.x does).
func ReadContainerd(h fs.FS, main, version string) (Containerd, error) {
	_, runtime := parseVersion(version)
	c := readRuntimeConfig(h, main, runtime)
	if c.err != nil {
		return Containerd{}, fmt.Errorf("read containerd's configuration: %w", c.err)
	}
	read := Containerd{Files: c.files, Version: c.version, Plugins: c.plugins}
	if len(c.files) == 0 {
		return read, nil
	}
	data, err := fs.ReadFile(h, name(main))
	if err != nil {
		return read, err
	}
	var f configFile
	if err := toml.Unmarshal(data, &f); err != nil {
		return read, err
	}
	for _, pattern := range f.Imports {
		if !path.IsAbs(pattern) {
			pattern = path.Join(path.Dir(main), pattern)
		}
		read.Imports = append(read.Imports, path.Clean(pattern))
	}
	return read, nil
}

// VersionBefore says whether a version of containerd is older. One that isn't known is not.
func VersionBefore(version string, major, minor, patch int) bool {
	_, v := parseVersion(version)
	return v.before(major, minor, patch)
}

// Handlers returns the paths of the runtime handlers' programs that satisfy is, by handler.
func (c Containerd) Handlers(is func(binary string) bool) map[string]string {
	return runtimeConfig{plugins: c.Plugins}.handlers(is)
}
