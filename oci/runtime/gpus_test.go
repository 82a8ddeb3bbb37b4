package ociruntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci/request"
)

// nodeJSON is what an agent with --memory-scaling=1.5 writes, of a GPU and a MIG device.
const nodeJSON = `{"version":2,"name":"n","writtenAt":"2026-01-02T03:04:05Z",
"devices":[{"uuid":"GPU-a","gpu":"GPU-a","memoryMiB":1500,"cores":100,"replicas":10},{"uuid":"MIG-b","gpu":"GPU-c","memoryMiB":500,"cores":100,"replicas":1}],
"node":{"gpus":[{"uuid":"GPU-a","index":0,"memoryMiB":1000},{"uuid":"GPU-c","index":1,"memoryMiB":1000,"mig":[{"uuid":"MIG-x"},{"uuid":"MIG-b"}]}]},
"contextMiB":{"GPU-a":105}}`

var nodeGPUs = GPUs{
	Capacity: map[string]grant.GPU{
		"GPU-a": {UUID: "GPU-a", MemoryMiB: 1500, CorePercent: 100, Replicas: 10},
		"MIG-b": {UUID: "MIG-b", MemoryMiB: 500, CorePercent: 100, Replicas: 1, Parent: "GPU-c"},
	},
	Indices:          map[string]string{"GPU-a": "0", "GPU-c": "1", "MIG-x": "1:0", "MIG-b": "1:1"},
	ContextMiB:       map[string]int64{"GPU-a": 105, "MIG-b": otherContextMiB},
	Oversubscription: map[string]float64{"GPU-a": 1.5},
}

// inventoryOf returns an inventory with a driver that returns nodeJSON, and counts its queries.
func inventoryOf(t *testing.T) (Inventory, *bootState, *atomic.Int32) {
	dir, queries := t.TempDir(), new(atomic.Int32)
	boot := &bootState{ID: "boot-1", Since: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), Driver: "570", GPUs: "0"}
	return Inventory{
		NodePath: filepath.Join(dir, "node.json"), CachePath: filepath.Join(dir, "run/gpus.json"),
		Query: func(context.Context) ([]byte, error) { queries.Add(1); return []byte(nodeJSON), nil },
		boot:  func() (bootState, error) { return *boot, nil },
	}, boot, queries
}

func TestGPUsByTheAgent(t *testing.T) {
	i, boot, queries := inventoryOf(t)
	write(t, i.NodePath, nodeJSON, 0o644)
	gpus, err := i.GPUs(context.Background())
	require.NoError(t, err)
	require.Equal(t, nodeGPUs, gpus)
	require.Zero(t, queries.Load())

	boot.Since = time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)
	_, err = i.GPUs(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 1, queries.Load(), "that was before the boot")

	// The clock was set forward after the agent had written its file: the boot seems later.
	withBoot := strings.Replace(nodeJSON, `"version":2`, `"version":2,"bootID":"boot-1"`, 1)
	write(t, i.NodePath, withBoot, 0o644)
	require.NoError(t, os.Remove(i.CachePath))
	_, err = i.GPUs(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 1, queries.Load(), "it is of this boot")
	boot.ID, boot.Since = "boot-2", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err = i.GPUs(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 2, queries.Load(), "it is of another boot, whatever the clock is")

	for content, want := range map[string]string{
		"{":             "node.json",
		`{"version":3}`: "version 3 is not supported, only 2",
	} {
		write(t, i.NodePath, content, 0o644)
		_, err = i.GPUs(context.Background())
		require.ErrorContains(t, err, want)
	}
}

// An agent that started before the driver has no GPU; if its settings exclude all, they are in its list.
func TestGPUsThatTheAgentLacks(t *testing.T) {
	i, _, queries := inventoryOf(t)
	write(t, i.NodePath, `{"version":2,"name":"n","writtenAt":"2026-01-02T03:04:05Z","devices":[],"node":{"gpus":[]}}`, 0o644)
	for range 2 {
		gpus, err := i.GPUs(context.Background())
		require.NoError(t, err)
		require.Equal(t, nodeGPUs, gpus)
	}
	require.EqualValues(t, 1, queries.Load(), "it is kept")

	require.NoError(t, os.Remove(i.CachePath))
	for node, capacity := range map[string]int{
		`"devices":[],"node":{"gpus":[{"uuid":"GPU-a"}]}`:                                      0,
		`"devices":[{"uuid":"GPU-b","memoryMiB":1,"cores":1,"replicas":1}],"node":{"gpus":[]}`: 1,
	} {
		write(t, i.NodePath, `{"version":2,"name":"n","writtenAt":"2026-01-02T03:04:05Z",`+node+`}`, 0o644)
		gpus, err := i.GPUs(context.Background())
		require.NoError(t, err)
		require.Len(t, gpus.Capacity, capacity)
		require.Equal(t, capacity == 0, gpus.None != "")
	}
	require.EqualValues(t, 1, queries.Load())
}

// A list without a GPU, of an agent that has no GPUs or does not run any more, is named in the refusal.
func TestNoGPUNamesTheList(t *testing.T) {
	i, _, _ := inventoryOf(t)
	i.Query = func(context.Context) ([]byte, error) { return nil, errors.New("no library") }
	write(t, i.NodePath, `{"version":2,"name":"n","writtenAt":"2026-01-02T03:04:05Z","devices":[],"node":{"gpus":[]}}`, 0o644)
	gpus, err := i.GPUs(context.Background())
	require.NoError(t, err)
	r := reservation{runtime: &Runtime{}, gpus: gpus, request: &request.Request{}}
	_, err = r.chooseGPUs(nil, request.Config{StateDir: t.TempDir()})
	require.ErrorIs(t, err, grant.ErrUnknownGPU)
	for _, want := range []string{i.NodePath, "2026-01-02T03:04:05Z", "gpuslice status", "remove the file"} {
		require.ErrorContains(t, err, want)
	}

	require.NoError(t, os.Remove(i.NodePath))
	i.Query = func(context.Context) ([]byte, error) { return []byte(`{"version":2}`), nil }
	r.gpus, err = i.GPUs(context.Background())
	require.NoError(t, err)
	_, err = r.chooseGPUs(nil, request.Config{StateDir: t.TempDir()})
	require.ErrorContains(t, err, "nvidia-smi -L")
}

func TestGPUsByTheDriver(t *testing.T) {
	i, boot, queries := inventoryOf(t)
	want := func(times int32, why string) {
		t.Helper()
		gpus, err := i.GPUs(context.Background())
		require.NoError(t, err)
		require.Equal(t, nodeGPUs, gpus)
		require.Equal(t, times, queries.Load(), why)
	}
	want(1, "nothing is cached")
	want(1, "it is kept")
	boot.ID = "boot-2"
	want(2, "another boot")
	boot.Driver = "575"
	want(3, "another driver")
	boot.GPUs = "0 1"
	want(4, "another GPU")
	write(t, i.CachePath, "{", 0o600)
	want(5, "it is damaged")
	info, err := os.Stat(i.CachePath)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestGPUsAskedOnceByMany(t *testing.T) {
	i, _, queries := inventoryOf(t)
	var all sync.WaitGroup
	errs := make([]error, 16)
	for n := range errs {
		all.Go(func() { _, errs[n] = i.GPUs(context.Background()) })
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.EqualValues(t, 1, queries.Load())
}

// The wait for a driver that hangs is limited.
func TestGPUsWaitIsBounded(t *testing.T) {
	i, _, queries := inventoryOf(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(i.CachePath), 0o755))
	lock, err := i.lock(context.Background())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeoutCause(context.Background(), 10*time.Millisecond, errors.New("timeout after 10ms"))
	defer cancel()
	_, err = i.GPUs(ctx)
	require.ErrorContains(t, err, "wait for another process that queries the driver")
	require.ErrorContains(t, err, "timeout after 10ms")
	require.Zero(t, queries.Load())
	require.NoError(t, lock.Close())
	_, err = i.GPUs(context.Background())
	require.NoError(t, err)
}

// A program that is killed for being late is not waited for through its children.
func TestQueryDriverIsBounded(t *testing.T) {
	program := write(t, filepath.Join(t.TempDir(), "gpuslice"), "#!/bin/sh\nsleep 600 &\necho $! > \"$0.pid\"\nwait\n", 0o755)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { _, err := queryDriver(ctx, program, request.Config{}); ended <- err }()
	require.Eventually(t, func() bool { data, _ := os.ReadFile(program + ".pid"); return len(data) > 1 }, patience, pause)
	cancel()
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(patience):
		t.Error("it waits for the grandchild")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(read(t, program+".pid")))
	require.NoError(t, err)
	require.NoError(t, unix.Kill(pid, unix.SIGKILL))
}

func TestNoGPUs(t *testing.T) {
	i, _, _ := inventoryOf(t)
	times := 0
	i.Query = func(context.Context) ([]byte, error) { times++; return []byte(`{"version":2}`), nil }
	for range 2 {
		gpus, err := i.GPUs(context.Background())
		require.NoError(t, err)
		require.Empty(t, gpus.Capacity)
	}
	require.Equal(t, 2, times, "the driver may come yet")

	i.Query = func(context.Context) ([]byte, error) { return nil, errors.New("the driver: nvmlInit: no library") }
	_, err := i.GPUs(context.Background())
	require.EqualError(t, err, "list the node's GPUs without gpuslice-agent: the driver: nvmlInit: no library")
}
