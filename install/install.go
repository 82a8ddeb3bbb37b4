// Package install embeds files for "gpuslice install".
package install

import (
	"embed"
	"io/fs"
)

//go:embed hooks.d/*.json
var hooks embed.FS

func Hooks() (fs.FS, error) { return fs.Sub(hooks, "hooks.d") }

// StateMount is the state directory's mount unit.
//
//go:embed run-gpuslice.mount
var StateMount []byte
