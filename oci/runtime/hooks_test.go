package ociruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

// hook runs a hook with an input, and returns what it wrote and output.
func (b *bench) hook(input string, args ...string) (stdout, stderr string, status int) {
	var out, output bytes.Buffer
	b.Stdin, b.Stdout, b.Stderr = strings.NewReader(input), &out, &output
	status = b.Main(context.Background(), append([]string{"hook"}, args...))
	return out.String(), strings.TrimSpace(output.String()), status
}

// state is the input of hooks.
func state(t testing.TB, bundle string) string {
	data, err := json.Marshal(rspec.State{Version: "1.0.2", ID: id, Status: rspec.StateCreating, Bundle: bundle})
	require.NoError(t, err)
	return string(data)
}

func (b *bench) claims(t testing.TB) []ledger.Claim {
	now, err := b.ledger.Snapshot(context.Background())
	require.NoError(t, err)
	return now.Claims()
}

func TestPrecreateRefuses(t *testing.T) {
	b := newBench(t)
	config := read(t, filepath.Join(b.bundle(t, "podman-4"), configName))
	for description, c := range map[string]struct{ config, want string }{
		"too much":           {strings.Replace(config, "=4GiB", "=400GiB", 1), "this node can never have a GPU with 400GiB"},
		"not a container ID": {strings.ReplaceAll(config, id, "web"), "container id"},
		"no JSON":            {"config", "read the container's config on stdin"},
		"device by hand":     {strings.Replace(strings.Replace(config, "GPUSLICE_MEMORY", "X", 1), `"linux":{`, `"linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0}],`, 1), "/dev/nvidia0, which has no limits"},
		"nothing on stdin":   {"", "read the container's config on stdin"},
	} {
		t.Run(description, func(t *testing.T) {
			out, output, status := b.hook(c.config, "precreate")
			if status == exitDone { // podman is left to make it, which this hook prevents
				output, status = b.refusal(t, out)
			}
			assert.Equal(t, exitFailed, status)
			assert.Contains(t, output, c.want)
			assert.Empty(t, b.claims(t))
		})
	}
}

// refusal runs the first hook of a config, which precreate put there.
func (b *bench) refusal(t *testing.T, config string) (output string, status int) {
	t.Helper()
	var spec rspec.Spec
	require.NoError(t, json.Unmarshal([]byte(config), &spec))
	require.NotNil(t, spec.Hooks)
	require.NotEmpty(t, spec.Hooks.CreateRuntime)
	args := spec.Hooks.CreateRuntime[0].Args
	require.Equal(t, "hook", args[1])
	_, output, status = b.hook("{}", args[2:]...)
	return output, status
}

func TestVerify(t *testing.T) {
	nvidia := rspec.Hook{Path: "/usr/bin/nvidia-container-runtime-hook"}
	node := rspec.LinuxDevice{Path: "/dev/nvidia0", Type: "c", Major: 195}
	for _, c := range []struct {
		description string
		spec        rspec.Spec
		want        string // empty: it may run
	}{
		{"nothing of a GPU", rspec.Spec{}, ""},
		{"an image that requests a GPU, without NVIDIA's hook", rspec.Spec{Process: &rspec.Process{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}}}, ""},
		{
			"an image that requests a GPU, and NVIDIA's hook",
			rspec.Spec{Process: &rspec.Process{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}}, Hooks: &rspec.Hooks{CreateRuntime: []rspec.Hook{nvidia}}},
			"NVIDIA's hook would inject a GPU",
		},
		{"a device", rspec.Spec{Linux: &rspec.Linux{Devices: []rspec.LinuxDevice{node}}}, "it has the device node /dev/nvidia0, but the container has no limits"},
		{
			"a device, and limits that are of no claim",
			rspec.Spec{Linux: &rspec.Linux{Devices: []rspec.LinuxDevice{node}}, Mounts: []rspec.Mount{{Destination: api.ContainerLimitsPath, Source: "/home/me/limits"}}},
			"the container has no limits",
		},
		{"a request without the wrapper", rspec.Spec{Process: &rspec.Process{Env: []string{"GPUSLICE_MEMORY=1GiB"}}}, "which a createRuntime hook can't add"},
		{"a request that can't be read", rspec.Spec{Process: &rspec.Process{Env: []string{"GPUSLICE_MEMORY=much"}}}, "GPUSLICE_MEMORY"},
	} {
		t.Run(c.description, func(t *testing.T) {
			b := newBench(t)
			data, err := json.Marshal(c.spec)
			require.NoError(t, err)
			bundle := filepath.Dir(write(t, filepath.Join(b.dir, "b", configName), string(data), 0o600))
			_, output, status := b.hook(state(t, bundle), "createRuntime")
			if c.want == "" {
				require.Zero(t, status, output)
				return
			}
			require.Equal(t, exitFailed, status)
			require.Contains(t, output, c.want)
		})
	}
}

// A container that the NRI plugin has limited is Kubernetes': untouched, and its claim
// stays when it is removed.
func TestLimitedByNRI(t *testing.T) {
	b := newBench(t)
	bundle := b.bundle(t, "cri")
	claim := ledger.Claim{
		ContainerID: id, Owner: ledger.OwnerNRI, Container: "main", PodUID: "9d1f",
		Shares: []grant.Share{{UUID: gpu0, MemoryMiB: 1000}},
	}
	gpus, err := b.GPUs(context.Background())
	require.NoError(t, err)
	config := filepath.Join(bundle, configName)
	limited := strings.Replace(read(t, config), `"mounts":[`, `"mounts":[{"destination":"/.gpuslice","type":"bind","source":"`+limiter.FilesDir(b.ledger.Dir(id))+`"},`, 1)

	_, err = b.ledger.Claim(context.Background(), claim, gpus.Capacity, nil)
	require.NoError(t, err)
	write(t, config, limited, 0o600)
	require.NoError(t, b.make(bundle))
	require.Equal(t, limited, read(t, config))
	for _, stage := range []string{"createRuntime", "poststop"} {
		_, output, status := b.hook(state(t, bundle), stage)
		require.Zero(t, status, output)
	}
	require.Len(t, b.claims(t), 1)
}

func TestHookErrors(t *testing.T) {
	b := newBench(t)
	for _, args := range [][]string{{}, {"prestart"}, {"--config=/x"}} {
		_, output, status := b.hook("", args...)
		require.Equal(t, exitFailed, status)
		require.Contains(t, output, "gpuslice-runtime hook {precreate|createRuntime|poststop}")
	}
	_, output, status := b.hook("{", "poststop")
	require.Equal(t, exitFailed, status)
	require.Contains(t, output, "read the container's state on stdin")
	b.ConfigProblem = errors.New("runtime.yaml:3: memory: not a size")
	out, _, status := b.hook(read(t, "testdata/specs/podman-4.json"), "precreate")
	require.Zero(t, status)
	output, status = b.refusal(t, out)
	require.Equal(t, exitFailed, status)
	require.Contains(t, output, "runtime.yaml:3")
}

// The definitions name the stages that there are, and nothing else runs them.
func TestHookFiles(t *testing.T) {
	files, err := filepath.Glob("../../install/hooks.d/*.json")
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, path := range files {
		var file struct {
			Version string
			Hook    struct {
				Path    string
				Args    []string
				Timeout int
			}
			When   map[string]bool
			Stages []string
		}
		dec := json.NewDecoder(strings.NewReader(read(t, path)))
		dec.DisallowUnknownFields()
		require.NoError(t, dec.Decode(&file), path)
		require.Equal(t, "1.0.0", file.Version)
		require.Equal(t, map[string]bool{"always": true}, file.When)
		require.Equal(t, append([]string{"gpuslice-runtime", "hook"}, file.Stages...), file.Hook.Args)
		require.Contains(t, path, strings.ToLower(file.Stages[0]))
		require.Equal(t, hookTimeoutSeconds, file.Hook.Timeout)
	}
}
