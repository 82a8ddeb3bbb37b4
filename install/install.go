// Package install embeds files for "gpuslice install".
package install

import (
	"embed"
	"io/fs"
)

//go:embed hooks.d/*.json
var hooks embed.FS

func Hooks() (fs.FS, error) { return fs.Sub(hooks, "hooks.d") }

// AgentUnit is the systemd unit of the agent without Kubernetes.
//
//go:embed gpuslice-agent.service
var AgentUnit []byte

// StateMount is the state directory's mount unit.
//
//go:embed run-gpuslice.mount
var StateMount []byte
