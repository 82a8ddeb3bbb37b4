// Package install is what hosts and clusters are given as files. The hooks of
// runtimes are in the binary too, for "gpuslice install".
package install

import (
	"embed"
	"errors"
	"io/fs"
)

//go:embed *
var files embed.FS

// Hooks are the definitions of hooks.d, for /usr/share/containers/oci/hooks.d.
func Hooks() (fs.FS, error) {
	hooks, err := fs.Sub(files, "hooks.d")
	if _, statErr := fs.Stat(files, "hooks.d"); errors.Is(statErr, fs.ErrNotExist) {
		return embed.FS{}, err
	}
	return hooks, err
}
