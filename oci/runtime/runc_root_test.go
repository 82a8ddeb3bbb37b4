//go:build root

package ociruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

// A container's life with real runc: its limits inside, its claim while it is there.
func TestLife(t *testing.T) {
	m := newMachine(t, "")
	bundle := m.bundle("web", []string{"GPUSLICE_MEMORY=8GiB", "GPUSLICE_CORES=30"})
	m.must("create", "--bundle", bundle, "--pid-file", m.path("pid"), "web")
	defer m.remove("web")
	ids, usage := m.claimed()
	require.Equal(t, []string{"web"}, ids)
	require.Equal(t, map[string]ledger.Usage{t4: {MemoryMiB: 8192, CorePercent: 30, Replicas: 1}}, usage, "the fullest that it fits on")

	m.must("start", "web")
	inside := values(m.must("exec", "web", "/opt/meminfo"))
	require.Equal(t, "8589934592", inside["device.0.total_bytes"])
	require.Equal(t, "1", inside["device_count"])
	require.Equal(t, t4, inside["device.0.uuid"])

	_, err := m.run("delete", "web")
	require.Error(t, err, "it runs")
	ids, _ = m.claimed()
	require.Equal(t, []string{"web"}, ids, "a delete that failed releases nothing")

	m.must("kill", "web", "KILL")
	require.Eventually(t, func() bool { return strings.Contains(m.must("state", "web"), "stopped") }, patience, pause)
	m.must("delete", "web")
	ids, _ = m.claimed()
	require.Empty(t, ids)
	require.NoDirExists(t, m.path("root/web"))
}

// runc run waits for the container and deletes it: the poststop hook releases the claim.
func TestRunInTheForeground(t *testing.T) {
	m := newMachine(t, "")
	bundle := m.bundle("once", []string{"GPUSLICE_MEMORY=25%"}, "/opt/meminfo")
	for range 2 { // the second time with the config that the first one wrote
		inside := values(m.must("run", "-b", bundle, "once"))
		require.Equal(t, "4026531840", inside["device.0.total_bytes"], "a quarter of the T4")
		ids, _ := m.claimed()
		require.Empty(t, ids)
		require.Len(t, m.spec(bundle).Hooks.Poststop, 1)
	}
}

func TestWithoutRequest(t *testing.T) {
	m := newMachine(t, "")
	bundle := m.bundle("plain", nil, "true")
	before := read(t, filepath.Join(bundle, configName))
	m.must("run", "-b", bundle, "plain")
	require.Equal(t, before, read(t, filepath.Join(bundle, configName)), "no request, no change")

	bundle = m.bundle("greedy", []string{"NVIDIA_VISIBLE_DEVICES=all"}, "env")
	require.Equal(t, "void", values(m.must("run", "-b", bundle, "greedy"))["NVIDIA_VISIBLE_DEVICES"])
	ids, _ := m.claimed()
	require.Empty(t, ids)
}

func TestRefusals(t *testing.T) {
	m := newMachine(t, "")
	for _, c := range []struct {
		description string
		env         []string
		change      func(*rspec.Spec)
		want        string
	}{
		{"too much", []string{"GPUSLICE_MEMORY=800GiB"}, nil, "gpuslice: container web: this node can never have a GPU with 800GiB of memory: GPU 0"},
		{"nonsense", []string{"GPUSLICE_MEMORY=much"}, nil, "GPUSLICE_MEMORY"},
		{
			"a device without a request", nil,
			func(s *rspec.Spec) {
				s.Linux.Devices = append(s.Linux.Devices, rspec.LinuxDevice{Path: "/dev/nvidia0", Type: "c", Major: 195})
			},
			"it has the device node /dev/nvidia0, which has no limits: request a share instead (-e GPUSLICE_MEMORY=8GiB)",
		},
		{
			"a device beside a request", []string{"GPUSLICE_MEMORY=1GiB", "GPUSLICE_DEVICES=device=0"},
			func(s *rspec.Spec) {
				s.Linux.Devices = append(s.Linux.Devices, rspec.LinuxDevice{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1})
			},
			"it has the device node /dev/nvidia1",
		},
	} {
		t.Run(c.description, func(t *testing.T) {
			bundle := m.bundle("web", c.env)
			if c.change != nil {
				m.change(bundle, c.change)
			}
			before := read(t, filepath.Join(bundle, configName))
			out, err := m.run("create", "--bundle", bundle, "web")
			require.Error(t, err)
			assert.Contains(t, out, c.want)
			assert.Contains(t, m.lastLog(), c.want, "what docker shows")
			assert.Equal(t, before, read(t, filepath.Join(bundle, configName)))
			assert.NoDirExists(t, m.path("root/web"))
			ids, _ := m.claimed()
			assert.Empty(t, ids)
		})
	}
}

// With an invalid config no container is created, but containers can be removed.
func TestBadConfig(t *testing.T) {
	m := newMachine(t, "")
	_, err := m.create("web", "GPUSLICE_MEMORY=1GiB")
	require.NoError(t, err)
	config := read(t, m.path("runtime.yaml"))
	write(t, m.path("runtime.yaml"), config+"\nmaximum: {memory: much}\n", 0o644)
	_, err = m.run("create", "-b", m.bundle("plain", nil), "plain")
	require.Error(t, err)
	require.Contains(t, m.lastLog(), "runtime.yaml:6: maximum.memory")
	m.must("state", "web")
	write(t, m.path("runtime.yaml"), config, 0o644)
	m.remove("web")
}

// The low-level create fails: nothing stays once docker has called delete, or once
// another container was made.
func TestLowLevelCreateFails(t *testing.T) {
	m := newMachine(t, "")
	for _, cleaned := range []bool{true, false} {
		bundle := m.bundle("web", []string{"GPUSLICE_MEMORY=1GiB"}, "/no/such/program")
		m.change(bundle, func(s *rspec.Spec) { s.Linux.CgroupsPath = "bad\x00path" })
		_, err := m.run("create", "-b", bundle, "web")
		require.Error(t, err)
		ids, _ := m.claimed()
		require.Equal(t, []string{"web"}, ids)
		if cleaned {
			m.remove("web")
		} else {
			_, err = m.create("other", "GPUSLICE_MEMORY=1GiB")
			require.NoError(t, err)
			ids, _ = m.claimed()
			require.Equal(t, []string{"other"}, ids)
			m.remove("other")
		}
		ids, _ = m.claimed()
		require.Empty(t, ids)
	}
}

// Killed at each step, and what comes after: docker's delete, another container, or the
// same one again.
func TestKilledAtEachStep(t *testing.T) {
	m := newMachine(t, "")
	request := []string{"GPUSLICE_MEMORY=8GiB"}
	for _, step := range []string{"swept", "claimed", "written", "exec"} {
		for _, then := range []string{"delete", "other", "again"} {
			t.Run(step+", then "+then, func(t *testing.T) {
				_, err := m.runWith([]string{killEnv + "=" + step}, "create", "-b", m.bundle("web", request), "web")
				require.ErrorContains(t, err, "killed")
				switch then {
				case "delete":
					m.remove("web")
				case "other", "again":
					id := map[string]string{"other": "other", "again": "web"}[then]
					out, err := m.create(id, request...)
					require.NoError(t, err, out)
					ids, usage := m.claimed()
					require.Equal(t, []string{id}, ids)
					require.Equal(t, int64(8192), usage[t4].MemoryMiB)
					m.remove(id)
				}
				ids, _ := m.claimed()
				require.Empty(t, ids)
				left, err := filepath.Glob(m.path("bundles/*/.new-*"))
				require.NoError(t, err)
				require.Empty(t, left)
			})
		}
	}
}

// 32 at once on GPUs with capacity for 20: no overbooking, no leak.
func TestThirtyTwoAtOnce(t *testing.T) {
	m := newMachine(t, "")
	const containers, replicas = 32, 20
	name := func(i int) string { return fmt.Sprintf("c%02d", i) }
	outs, errs := make([]string, containers), make([]error, containers)
	bundles := make([]string, containers)
	for i := range containers {
		bundles[i] = m.bundle(name(i), []string{"GPUSLICE_MEMORY=1GiB", "GPUSLICE_CORES=10"})
	}
	var all sync.WaitGroup
	for i := range containers {
		all.Go(func() { outs[i], errs[i] = m.run("create", "-b", bundles[i], name(i)) })
	}
	all.Wait()
	made := 0
	for i := range containers {
		if errs[i] == nil {
			made++
			spec := m.spec(bundles[i])
			limits, err := limiter.ReadLimits(limiter.LimitsPath(filepath.Join(m.path("run/containers"), name(i))))
			require.NoError(t, err)
			require.Equal(t, uint64(1<<30), limits.Devices[0].MemoryLimitBytes)
			require.Contains(t, spec.Process.Env, "CUDA_DEVICE_MEMORY_LIMIT_0=1024m")
			continue
		}
		assert.Contains(t, outs[i], "not enough free GPU capacity")
	}
	ids, usage := m.claimed()
	assert.Equal(t, replicas, made, "the whole capacity, and no more")
	assert.Len(t, ids, made)
	for uuid, u := range usage {
		assert.LessOrEqual(t, u.CorePercent, 100, uuid)
		assert.LessOrEqual(t, u.Replicas, 10, uuid)
	}
	for i := range containers {
		all.Go(func() { _, errs[i] = m.run("delete", "--force", name(i)) })
	}
	all.Wait()
	for i := range containers {
		require.NoError(t, errs[i])
	}
	ids, _ = m.claimed()
	assert.Empty(t, ids)
	left, err := os.ReadDir(m.path("root"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

// Where no CDI spec has the GPUs, NVIDIA's runtime makes the container, if it is there and
// runc is what it calls; else the error has what to do.
func TestNvidiaRuntimeInRuncsPlace(t *testing.T) {
	for _, c := range []struct {
		description, lowLevel, injection string
		specs                            bool
		want                             string
		err                              string
	}{
		{"a spec has the GPUs", "runc", "auto", true, "runc", ""},
		{"no spec", "runc", "auto", false, "nvidia-container-runtime", ""},
		{"the operator wants it so", "runc", "envvar", true, "nvidia-container-runtime", ""},
		{"the operator doesn't", "runc", "cdi", false, "", "no CDI device nvidia.com/gpu=" + gpu0},
		{"it wouldn't call this one", "crun", "auto", false, "", "set nvidia-container-runtime first in runtimes of the config"},
	} {
		t.Run(c.description, func(t *testing.T) {
			b := newBench(t)
			bin := filepath.Join(b.dir, "bin")
			for _, name := range []string{"runc", "crun", "nvidia-container-runtime"} {
				write(t, filepath.Join(bin, name), "", 0o755)
			}
			b.Self = write(t, filepath.Join(b.dir, "self/gpuslice-runtime"), "", 0o755)
			b.Env = []string{"PATH=" + bin}
			b.Config.Runtimes, b.Config.DeviceInjection = []string{c.lowLevel}, c.injection
			if !c.specs {
				b.Config.CDISpecDirs = []string{filepath.Join(b.dir, "none")}
			}
			var ran, called string
			b.Exec = func(path string, argv, _ []string) error { ran, called = path, argv[0]; return errors.New("it ran") }
			output := new(bytes.Buffer)
			b.Stderr = output
			b.Main(context.Background(), []string{"create", "--bundle", b.bundle(t, "docker-20"), id})
			if c.err != "" {
				require.Contains(t, output.String(), c.err)
				require.Empty(t, ran)
				return
			}
			require.Equal(t, filepath.Join(bin, c.want), ran, output)
			require.Equal(t, ran, called)
		})
	}
}
