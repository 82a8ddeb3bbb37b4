//go:build root

package gpu

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// unpack builds the bundle and unpacks it, as on a machine that has nothing else of gpuslice.
func unpack(t *testing.T) string {
	t.Helper()
	root, err := harness.Repository()
	require.NoError(t, err)
	run(t, exec.Command("make", "-s", "-C", root, "gpu-bundle"))
	dir := t.TempDir()
	run(t, exec.Command("tar", "-C", dir, "-xzf", filepath.Join(root, "build/gpu-bundle.tar.gz")))
	return filepath.Join(dir, "gpu-bundle")
}

func run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
}

type results struct {
	GPU, Driver, Date string
	AgentLoop         bool
	Parts             []struct{ Part, State string }
	Questions         []struct {
		Key, GPU, Simulator, WithProfile string
		Wrong, WrongWithProfile          *bool
	}
	Rows []struct {
		Suite, Name, Figure string
		Held                *bool
	}
}

// gpuTest runs gpu-test.sh of a bundle where compilers fail, and reads its results.
func gpuTest(t *testing.T, bundle string, env []string, args ...string) (r results, out, text string, status int) {
	t.Helper()
	tools := t.TempDir()
	for _, tool := range []string{"gcc", "cc", "make", "go"} {
		require.NoError(t, os.WriteFile(filepath.Join(tools, tool), []byte("#!/bin/sh\necho "+tool+" was called >&2\nexit 1\n"), 0o755))
	}
	out = t.TempDir()
	cmd := exec.Command(filepath.Join(bundle, "gpu-test.sh"), append([]string{"--out", out}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, env...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	_ = cmd.Run()
	t.Logf("%s", output.String())
	content, err := os.ReadFile(one(t, out, "*.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(content, &r))
	return r, out, output.String(), cmd.ProcessState.ExitCode()
}

func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}

// All parts, on a simulated GPU that is not as the simulator assumes: what differs is found, and the profile is of it.
func TestGPUTest(t *testing.T) {
	bundle := unpack(t)
	const gpu = "H200:page_kib=1024,small_kib=512,context_mib=470,slice_us=3000,sm=100,process_utilization=info"
	r, out, _, status := gpuTest(t, bundle, nil, "--sim="+gpu, "--quick", "--minutes", "15")

	assert.True(t, r.AgentLoop)
	assert.Equal(t, "570.172.08, simulated", r.Driver)
	for _, part := range r.Parts {
		assert.Equal(t, "finished", part.State, part.Part)
	}
	assert.Len(t, r.Parts, 12)

	suites := map[string]bool{}
	for _, row := range r.Rows {
		suites[row.Suite] = true
		assert.True(t, row.Held == nil || *row.Held, row.Name)
	}
	assert.Zero(t, status)
	assert.Equal(t, map[string]bool{"memory": true, "front": true, "crash": true, "overhead": true, "share": true, "runtime": true, "torch": true, "vllm": true}, suites)

	// Those that no clock decides.
	want := map[string]string{
		"page.3m": "3072.00", "page.1m_and_1": "2048.00", "page.page_kib": "1024", "page.small_kib": "512", "context.process_mib": "470",
		"context.malloc_launch_mib": "66", "context.heap_again": "CUDA_ERROR_INVALID_VALUE", "nvml.pids": "own",
		"stream.sm": "100", "nvml.process_utilization": "info", "nvml.samples": "ERROR_NOT_SUPPORTED", "nvml.info": "SUCCESS",
	}
	for _, q := range r.Questions {
		if q.Key == "event.added_500us" || q.Key == "slice.waiting_percent" {
			assert.NotEmpty(t, q.GPU, q.Key)
		}
		if want[q.Key] == "" {
			continue
		}
		assert.Equal(t, want[q.Key], q.GPU, q.Key)
		assert.Equal(t, want[q.Key], q.WithProfile, q.Key)
		require.NotNil(t, q.Wrong, q.Key)
		assert.Equal(t, q.Simulator != q.GPU, *q.Wrong, q.Key)
		require.NotNil(t, q.WrongWithProfile, q.Key)
		assert.False(t, *q.WrongWithProfile, q.Key)
		delete(want, q.Key)
	}
	assert.Empty(t, want, "not asked")

	profile := one(t, out, "*.conf")
	cmd := exec.Command(filepath.Join(bundle, "bin/sim/simctl"), "--state", filepath.Join(t.TempDir(), "state"), "init", "--config", profile)
	run(t, cmd)
	text, err := os.ReadFile(profile)
	require.NoError(t, err)
	for _, line := range []string{"profile = H200", "memory_mib = 143771", "page_kib = 1024", "context_mib = 470", "process_utilization = info", "pids = own"} {
		assert.Contains(t, string(text), line+"\n")
	}
	markdown, err := os.ReadFile(one(t, out, "*.md"))
	require.NoError(t, err)
	assert.Contains(t, string(markdown), "| KiB of the pages that explain these (0: to the byte) | 1024 |")
	assert.Contains(t, string(markdown), "| wrong, right with the profile |")
}

// A program that hangs costs its part's time and no more, and the part is named.
func TestGPUTestNamesPartsThatDoNotFinish(t *testing.T) {
	hangs := filepath.Join(t.TempDir(), "python")
	require.NoError(t, os.WriteFile(hangs, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755))
	r, _, text, status := gpuTest(t, unpack(t), []string{"PYTHON=" + hangs}, "--sim", "--quick", "--minutes", "0.2", "--parts", "torch vllm")
	assert.Equal(t, 1, status)
	assert.Contains(t, text, "parts that did not finish: torch vllm\n")
	assert.Equal(t, "not finished", r.Parts[0].State)
}

func TestGPUTestRejectsUnknownArguments(t *testing.T) {
	for _, args := range [][]string{{"--minutes", "none"}, {"--minutes", "0"}, {"--parts", "nothing"}, {"--what"}} {
		cmd := exec.Command("./gpu-test.sh", args...)
		_ = cmd.Run()
		assert.Equal(t, 2, cmd.ProcessState.ExitCode(), args)
	}
}
