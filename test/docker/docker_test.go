package docker_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

func TestDocker(t *testing.T) {
	m := newMachine(t, "H200")
	d := newDockerd(t, m, harness.DockerdOptions{})
	ctx := context.Background()
	out, err := d.Docker(ctx, "run", "--rm", "--network", "none", harness.WorkloadImage, "/bin/env")
	t.Log(out, err)
	require.NoError(t, err)
	out, err = d.Docker(ctx, "run", "--rm", "--network", "none", "--runtime", "gpuslice", "-e", "GPUSLICE_MEMORY=8GiB", "-e", "GPUSLICE_CORES=30", harness.WorkloadImage, harness.WorkloadDir+"/meminfo")
	t.Log(out, err)
	require.NoError(t, err)
}
