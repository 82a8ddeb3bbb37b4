//go:build root

package docker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/install"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/loopback"
)

// The agent as its unit starts it, beside docker: it is ready without NRI and a kubelet, shows docker's containers, and
// does not change their shares.
func TestAgentOfTheUnit(t *testing.T) {
	ctx := context.Background()
	m := newMachine(t, "H200")
	d := newDocker(t, m, harness.DockerdOptions{})
	id := d.start(t, share(8192, 30))
	out, err := m.CLI(ctx, "status")
	require.NoError(t, err)
	require.Contains(t, out, "note: gpuslice-agent does not run: ")

	command := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/gpuslice-agent (.*)$`).FindSubmatch(install.AgentUnit)
	require.NotNil(t, command)
	program, err := harness.Artefact("bin", "gpuslice-agent")
	require.NoError(t, err)
	health, metrics := loopback.FreeAddress(t), loopback.FreeAddress(t)
	args := append(strings.Fields(string(command[1])), "--health-address="+health, "--metrics-address="+metrics)
	agent, err := harness.StartProcess(m.Dir, "gpuslice-agent", m.RuntimeEnv(), program, args...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, agent.Stop(harness.StopPatience)) })
	get := func(address string) (int, string) {
		response, err := http.Get("http://" + address)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body)
	}
	require.NoError(t, harness.Until(ctx, time.Minute, func(context.Context) error {
		if status, body := get(health + "/readyz"); status != http.StatusOK {
			return &net.AddrError{Err: body, Addr: health}
		}
		return nil
	}))
	_, body := get(metrics + "/metrics")
	require.Contains(t, body, id)
	out, err = m.CLI(ctx, "status")
	require.NoError(t, err)
	require.NotContains(t, out, "note: gpuslice-agent")
	// top has the agent's figures from NVML.
	require.NoError(t, harness.Until(ctx, time.Minute, func(context.Context) error {
		out, err := m.CLI(ctx, "top", "--once", "-o", "json", "--interval", "100ms")
		if err == nil && !strings.Contains(out, `"telemetry"`) {
			err = errors.New("no telemetry: " + out)
		}
		return err
	}))
	requireSees(t, d.exec(t, id, workload("meminfo")), 8192)
	other := d.start(t, share(4096, 30))
	requireReserved(t, m, 8192+4096, 2)
	d.remove(t, id, other)
	requireNothingLeft(t, m)
}
