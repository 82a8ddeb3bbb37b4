package doctor

import (
	"fmt"
	"io/fs"
	"path"

	"github.com/pelletier/go-toml/v2"
)

// Containerd is containerd's configuration with all imports.
type Containerd struct {
	// Files that were read, the main file first.
	Files   []string
	Version int
	// Imports are the main file's, as absolute patterns.
	Imports []string
	// Plugins are the merged sections of all plugins, with the names of version 3.
	Plugins map[string]any
}

// The names of plugins; PluginCRIv2 is CRI in files of version 2.
const (
	PluginNRI   = pluginNRI
	PluginCRI   = pluginCRI
	PluginCRIv2 = pluginCRIv2
)

// ReadContainerd reads a configuration with its imports. An unknown version merges them as 2.x.
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

// VersionBefore reports whether a version is older; an unknown one is not.
func VersionBefore(version string, major, minor, patch int) bool {
	_, v := parseVersion(version)
	return v.before(major, minor, patch)
}

// Handlers returns the programs that satisfy is, by runtime handler.
func (c Containerd) Handlers(is func(binary string) bool) map[string]string {
	return runtimeConfig{plugins: c.Plugins}.handlers(is)
}
