//go:build root

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

// A pod of a runtime handler gets no share by its variables: in Kubernetes only a grant gives
// one.
func TestContainerdHandler(t *testing.T) {
	m := newMachine(t, "H200")
	c := newContainerd(t, m)
	ctx := context.Background()
	pod, err := c.RunPod(ctx, harness.Pod{Name: "p", Handler: "gpuslice"})
	require.NoError(t, err)
	for description, k := range map[string]harness.Container{
		"variables":              {Env: []string{"GPUSLICE_MEMORY=3GiB", "GPUSLICE_CORES=10"}},
		"too much":               {Env: []string{"GPUSLICE_MEMORY=140000m"}},
		"annotations":            {Annotations: map[string]string{"gpuslice.io/memory": "3GiB"}},
		"no request":             {Image: harness.GreedyImage},
		"no request, privileged": {Image: harness.GreedyImage, Privileged: true},
	} {
		k.Name = "none"
		id, err := pod.Start(ctx, k)
		require.NoError(t, err, description)
		_, _, code, err := c.Exec(ctx, id, workload("meminfo"))
		require.NoError(t, err)
		require.Equal(t, 4, code, "%s: no driver", description)
		require.NoError(t, c.RemoveContainer(ctx, id))
		requireNothingLeft(t, m)
	}
	require.NoError(t, pod.Remove(ctx))
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
