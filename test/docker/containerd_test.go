package docker_test

import (
	"context"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// newContainerd starts a containerd without NRI and with the wrapper as a runtime
// handler, for the test's time.
func newContainerd(t testing.TB, m *harness.Machine) *harness.Containerd {
	ctx := context.Background()
	wrapper, err := harness.Wrapper()
	require.NoError(t, err)
	c, err := harness.NewContainerd(ctx, filepath.Join(m.Dir, "c"), harness.ContainerdOptions{
		DisableNRI: true, Runtimes: map[string]string{"gpuslice": wrapper}, Env: m.RuntimeEnv(),
	})
	t.Cleanup(func() {
		if c == nil {
			return
		}
		if t.Failed() {
			t.Logf("containerd's log:\n%s", c.LogTail(30))
		}
		assert.NoError(t, c.Close(ctx))
	})
	require.NoError(t, err)
	archive := filepath.Join(m.Dir, "images.tar")
	require.NoError(t, harness.WriteImages(archive))
	require.NoError(t, c.Import(ctx, archive))
	return c
}

// A pod of a runtime handler: requests are the containers' own, one by one.
func TestContainerdHandler(t *testing.T) {
	m := newMachine(t, "H200")
	c := newContainerd(t, m)
	ctx := context.Background()
	pod, err := c.RunPod(ctx, harness.Pod{Name: "p", Handler: "gpuslice"})
	require.NoError(t, err)
	requireNothingLeft(t, m) // the sandbox itself asks for nothing

	meminfo := func(id string) map[string]string {
		stdout, stderr, code, err := c.Exec(ctx, id, workload("meminfo"))
		require.NoError(t, err)
		require.Zero(t, code, stderr)
		return harness.KeyValues(stdout)
	}
	for i, k := range []harness.Container{
		{Name: "variables", Env: []string{"GPUSLICE_MEMORY=3GiB", "GPUSLICE_CORES=10"}},
		{Name: "hardened", Env: []string{"GPUSLICE_MEMORY=3GiB", "GPUSLICE_CORES=10"}, User: 1000, ReadOnly: true},
		// It is root of its machine and could take any card; its programs are limited all the same.
		{Name: "privileged", Env: []string{"GPUSLICE_MEMORY=3GiB", "GPUSLICE_CORES=10"}, Privileged: true},
	} {
		id, err := pod.Start(ctx, k)
		require.NoError(t, err, k.Name)
		requireSees(t, meminfo(id), 3072)
		requireBooked(t, m, int64(i+1)*3072, i+1)
	}
	for name, k := range map[string]harness.Container{
		"no request": {Image: harness.GreedyImage},
		// containerd passes on none that its configuration doesn't name.
		"annotations only":       {Annotations: map[string]string{"gpuslice.io/memory": "3GiB"}},
		"no request, privileged": {Image: harness.GreedyImage, Privileged: true},
	} {
		k.Name = "none"
		id, err := pod.Start(ctx, k)
		require.NoError(t, err, name)
		_, _, code, err := c.Exec(ctx, id, workload("meminfo"))
		require.NoError(t, err)
		require.Equal(t, 4, code, "%s: no driver", name)
		require.NoError(t, c.RemoveContainer(ctx, id))
	}
	_, err = pod.Start(ctx, harness.Container{Name: "large", Env: []string{"GPUSLICE_MEMORY=140000m"}})
	require.ErrorContains(t, err, "gpuslice: ")
	require.ErrorContains(t, err, "there is no room")
	require.NoError(t, pod.Remove(ctx))
	requireNothingLeft(t, m)
}

// ctr run, which knows neither CRI nor NRI.
func TestCtr(t *testing.T) {
	m := newMachine(t, "H200")
	c := newContainerd(t, m)
	ctx := context.Background()
	wrapper, err := harness.Wrapper()
	require.NoError(t, err)
	run := func(name string, options []string, command ...string) (map[string]string, error) {
		args := append([]string{"run", "--rm", "--runc-binary", wrapper}, options...)
		args = append(append(args, harness.WorkloadImage, name), command...)
		out, err := c.Ctr(ctx, args...)
		return harness.KeyValues(out), err
	}
	asks := []string{"--env", "GPUSLICE_MEMORY=4GiB", "--env", "GPUSLICE_CORES=20"}
	v, err := run("one", asks, workload("meminfo"))
	require.NoError(t, err)
	requireSees(t, v, 4096)
	v, err = run("two", append(asks, "--read-only", "--user", "1000"), workload("alloc"), "--chunk-mib=2")
	require.NoError(t, err)
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"])
	require.Equal(t, strconv.Itoa((4096-contextMiB)*mib), v["allocated_bytes"])
	v, err = run("three", []string{"--annotation", "gpuslice.io/memory=5GiB"}, workload("meminfo"))
	require.NoError(t, err)
	requireSees(t, v, 5120)
	_, err = run("four", []string{"--env", "GPUSLICE_MEMORY=200GiB"}, "/bin/true")
	require.ErrorContains(t, err, "gpuslice: ")
	_, err = run("five", []string{"--env", "NVIDIA_VISIBLE_DEVICES=all"}, workload("meminfo"))
	require.ErrorContains(t, err, "exit status 4")
	requireNothingLeft(t, m)
}
