//go:build root

package docker_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// A container in a user namespace, with a root that has no rights outside, has its share too.
func TestDockerUserNamespaces(t *testing.T) {
	m := newMachine(t, "H200")
	d := newDocker(t, m, harness.DockerdOptions{Remapped: true})
	ctx := context.Background()
	id := d.start(t, share(3000, 20), workload("hold"), "--mib=100")
	d.waitReady(t, id)
	out, err := d.Docker(ctx, "exec", id, "/bin/cat", "/proc/self/uid_map")
	require.NoError(t, err)
	require.Regexp(t, `^\s*0\s+100000\s+65536\s*$`, out)
	for _, options := range [][]string{nil, {"--user", "1000"}} {
		out, err := d.Docker(ctx, append(append([]string{"exec"}, options...), id, workload("meminfo"))...)
		require.NoError(t, err)
		requireSees(t, harness.KeyValues(out), 3000)
	}
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", d.exec(t, id, workload("alloc"))["result"])
	_, err = d.Docker(ctx, "exec", id, "/bin/sh", "-c", "echo 0 >/.gpuslice/limits")
	require.Error(t, err)
	d.remove(t, id)
	requireNothingLeft(t, m)
}
