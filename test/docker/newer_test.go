//go:build root

package docker_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

const smallSlice = "slices:\n  small: {memory: 10GiB, cores: 20}\n"

// Docker 28, with images in its own store and in containerd's.
func TestNewerDocker(t *testing.T) {
	for name, inContainerd := range map[string]bool{"own store": false, "containerd's store": true} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "H200")
			require.NoError(t, m.WriteRuntimeConfig(smallSlice))
			require.NoError(t, m.GenerateSlices(context.Background()))
			d := newDocker(t, m, harness.DockerdOptions{Newer: true, ContainerdStore: inContainerd})
			out, err := d.Docker(context.Background(), "version", "--format", "{{.Server.Version}}")
			require.NoError(t, err)
			require.Regexp(t, `^28\.`, out)
			out, err = d.Docker(context.Background(), "info", "--format", "{{.Driver}}")
			require.NoError(t, err)
			require.Equal(t, map[bool]string{false: "overlay2", true: "overlayfs"}[inContainerd], strings.TrimSpace(out))
			runScenarios(t, d, append(scenarios[:len(scenarios):len(scenarios)],
				scenario{"a slice by its CDI name", sliceByName},
				scenario{"GPUs by docker run --gpus", gpusFlag},
				scenario{"compose", compose},
			))
		})
	}
}

// created creates a container as clients of docker's API do, with the fields of its HostConfig, and starts it.
func (d docker) created(t testing.TB, env []string, host map[string]any, command ...string) (id string, err error) {
	ctx := context.Background()
	host["NetworkMode"] = "none"
	var answer struct{ ID string }
	require.NoError(t, d.Request(ctx, "POST", "/v1.44/containers/create", map[string]any{
		"Image": harness.WorkloadImage, "Env": env, "Cmd": command, "HostConfig": host,
	}, &answer))
	return answer.ID, d.Request(ctx, "POST", "/v1.44/containers/"+answer.ID+"/start", nil, nil)
}

// sliceByName: docker run --device gpuslice.io/slice=small, which a client of docker 25 or newer sends so.
func sliceByName(t *testing.T, d docker) {
	host := func() map[string]any {
		return map[string]any{"DeviceRequests": []map[string]any{{"Driver": "cdi", "DeviceIDs": []string{"gpuslice.io/slice=small"}}}}
	}
	id, err := d.created(t, nil, host())
	require.NoError(t, err)
	requireReserved(t, d.m, 10240, 1)
	requireSees(t, d.exec(t, id, workload("meminfo")), 10240)
	_, err = d.created(t, nil, host())
	require.ErrorContains(t, err, "slice small: container "+id[:12]+" uses it")
}

// gpusFlag: whole GPUs, which the operator has to allow.
func gpusFlag(t *testing.T, d docker) {
	ctx := context.Background()
	all := sliced("--detach", "--gpus", "all", harness.WorkloadImage)
	_, err := d.Docker(ctx, all...)
	require.ErrorContains(t, err, `could not select device driver "" with capabilities: [[gpu]]`, "docker itself, without NVIDIA's toolkit")

	// Docker looks for NVIDIA's hook when it starts. The hook does nothing in containers in which the variable is void.
	require.NoError(t, errors.Join(d.InstallNvidiaHook(), d.m.WriteNvidiaConfig(harness.NvidiaConfig{})))
	require.NoError(t, d.RemoveAll(ctx))
	require.NoError(t, d.Stop())
	require.NoError(t, d.Start(ctx))
	_, err = d.Docker(ctx, all...)
	require.ErrorContains(t, err, "docker's --gpus (in compose: reservations.devices) requests whole GPUs")
	require.NoError(t, d.m.WriteRuntimeConfig(smallSlice+"allowWholeGPUs: true\n"))
	defer func() { require.NoError(t, d.m.WriteRuntimeConfig(smallSlice)) }()
	out, err := d.Docker(ctx, all...)
	require.NoError(t, err)
	requireReserved(t, d.m, 143771, 1)
	require.Equal(t, "1", d.exec(t, strings.TrimSpace(out), workload("meminfo"))["device_count"])
	_, err = d.Docker(ctx, all...)
	require.ErrorContains(t, err, "gpuslice: ")
}

// compose: what docker compose 2 sends for `runtime: gpuslice` with a request, and with deploy.resources.reservations.devices.
// The scenario before has NVIDIA's hook on the daemon's PATH.
func compose(t *testing.T, d docker) {
	devices := func() map[string]any {
		return map[string]any{"Runtime": "gpuslice", "DeviceRequests": []map[string]any{{
			"Driver": "nvidia", "Count": 1, "DeviceIDs": nil, "Capabilities": [][]string{{"gpu"}}, "Options": nil,
		}}}
	}
	request := []string{"GPUSLICE_MEMORY=8GiB", "GPUSLICE_CORES=30"}
	for _, host := range []map[string]any{{"Runtime": "gpuslice"}, devices()} {
		id, err := d.created(t, request, host)
		require.NoError(t, err)
		requireReserved(t, d.m, 8192, 1)
		requireSees(t, d.exec(t, id, workload("meminfo")), 8192)
		d.remove(t, id)
	}
	_, err := d.created(t, nil, devices())
	require.ErrorContains(t, err, "in compose: reservations.devices")
}
