// Package install is what hosts and clusters are given as files. The hooks of OCI
// runtimes are in the binary too, for "gpuslice install".
package install

import (
	"embed"
	"io/fs"
)

//go:embed hooks.d/*.json
var hooks embed.FS

// Hooks are the definitions of hooks.d, for /usr/share/containers/oci/hooks.d.
func Hooks() (fs.FS, error) { return fs.Sub(hooks, "hooks.d") }

// StateMount is the unit of systemd that makes the state directory a tmpfs of its own.
//
//go:embed run-gpuslice.mount
var StateMount []byte
