package hostinstall

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/install"
)

// The unit of the agent comes with docker and podman, is started on demand, and goes with the last of them.
func TestAgentUnit(t *testing.T) {
	h := newTestHost(t)
	h.put("/usr/bin/gpuslice-agent", "#!/bin/sh\n")
	require.NoError(t, os.Chmod(h.path("/usr/bin/gpuslice-agent"), 0o755))
	var calls []string
	var failure error
	options := func(engine string) Options {
		o := h.options(engine)
		o.AgentUnit = install.AgentUnit
		o.Systemctl = func(_ context.Context, args ...string) error {
			calls = append(calls, strings.Join(args, " "))
			return failure
		}
		return o
	}
	before := h.files()
	out, err := h.install(options("docker"))
	require.NoError(t, err)
	assert.Contains(t, out, "run `systemctl daemon-reload && systemctl enable --now gpuslice-agent.service` for the agent. Without it, limits of memory")
	assert.Equal(t, string(install.AgentUnit), h.read(agentUnit))
	assert.Empty(t, calls)

	o := options("podman")
	o.Start = true
	out, err = h.install(o)
	require.NoError(t, err)
	assert.Contains(t, out, "started    gpuslice-agent.service")
	assert.Equal(t, []string{"daemon-reload", "enable gpuslice-agent.service", "restart gpuslice-agent.service"}, calls)

	calls = nil
	_, err = h.uninstall(options("docker"))
	require.NoError(t, err)
	assert.FileExists(t, h.path(agentUnit), "podman has it still")
	assert.Empty(t, calls)
	failure = errors.New("it hangs")
	_, err = h.uninstall(options("podman"))
	require.ErrorContains(t, err, "stop the agent: it hangs")
	assert.FileExists(t, h.path(agentUnit))
	failure, calls = nil, nil
	_, err = h.uninstall(options("podman"))
	require.NoError(t, err)
	assert.Equal(t, []string{"disable --now gpuslice-agent.service"}, calls)
	for path := range h.files() {
		if _, was := before[path]; !was {
			assert.Contains(t, path, ".gpuslice-backup-")
		}
	}
}

// Where the agent's program is missing, the rest is installed and the output names what is not enforced.
func TestNoAgentProgram(t *testing.T) {
	h := newTestHost(t)
	o := h.options("docker")
	o.AgentUnit = install.AgentUnit
	out, err := h.install(o)
	require.NoError(t, err)
	assert.Contains(t, out, "/usr/bin/gpuslice-agent does not exist: no unit of the agent was written")
	assert.NoFileExists(t, h.path(agentUnit))
	o.Start = true
	_, err = h.install(o)
	require.ErrorContains(t, err, "--start: docker has no unit of the agent")
}

// The unit runs the program beside the runtime.
func TestAgentUnitOfAnotherPath(t *testing.T) {
	h := newTestHost(t)
	o := h.options("docker")
	o.RuntimePath, o.AgentUnit = "/opt/bin/gpuslice-runtime", install.AgentUnit
	for _, program := range []string{"/opt/bin/gpuslice-runtime", "/opt/bin/gpuslice-agent"} {
		h.put(program, "")
		require.NoError(t, os.Chmod(h.path(program), 0o755))
	}
	_, err := h.install(o)
	require.NoError(t, err)
	assert.Contains(t, h.read(agentUnit), "ExecStart=/opt/bin/gpuslice-agent --nri-socket= ")
}
