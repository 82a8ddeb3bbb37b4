package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
)

func TestOwnersAreThoseWithTheUsageFile(t *testing.T) {
	files := map[string]string{"a.1": "/slices/a.1/vgpu/usage", "b.1": "/slices/b.1/vgpu/usage"}
	start := func(usage string) int {
		cmd := exec.Command("cat")
		cmd.Env = []string{"HOME=/", "VGPU_USAGE_PATH=" + usage}
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
		return cmd.Process.Pid
	}
	a, b, other := start(files["a.1"]), start(files["b.1"]), start("/slices/c.1/vgpu/usage")
	assert.Equal(t, map[int]string{a: "a.1", b: "b.1"}, owners([]int{a, b, other, os.Getpid(), -1}, files))
}

func TestSlicesGetTheirIdentity(t *testing.T) {
	dir := t.TempDir()
	claim := filepath.Join(dir, "a.1")
	require.NoError(t, os.MkdirAll(limiterDir(claim), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "being made"), 0o755))
	require.NoError(t, limiter.WriteLimits(limiter.LimitsPath(claim), limiter.Limits{Devices: []limiter.DeviceLimit{{
		UUID: "GPU-00000001-5151-4000-8000-000000000001", MemoryLimitBytes: 1 << 30, CorePercent: 30, Priority: limiter.PriorityLow,
	}}}))
	all, err := slices(dir)
	require.NoError(t, err)
	assert.Equal(t, []feedback.Container{{ID: "a.1", Dir: claim}}, all)
	limits, err := limiter.ReadLimits(limiter.LimitsPath(claim))
	require.NoError(t, err)
	assert.Equal(t, limiter.IdentityOf("a.1"), limits.Identity)
}

func limiterDir(claim string) string { return filepath.Dir(limiter.LimitsPath(claim)) }
