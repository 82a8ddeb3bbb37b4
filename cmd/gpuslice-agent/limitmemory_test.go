package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
	"github.com/gpuslice/gpuslice/oci/native"
)

// keptLimits is a driver that keeps the limits of each GPU.
type keptLimits map[string]uint64

func (k keptLimits) SetMemoryLimit(_ context.Context, uuid, _ string, hard uint64) error {
	k[uuid] = hard
	return nil
}

func (k keptLimits) MemoryLimit(_ context.Context, uuid, _ string) (hardware.MemoryLimit, error) {
	if hard, has := k[uuid]; has {
		return hardware.MemoryLimit{Hard: hard}, nil
	}
	return hardware.MemoryLimit{}, errors.New("none")
}

func TestAgentAnswersHooks(t *testing.T) {
	dir := t.TempDir()
	l, err := listenForHooks(dir)
	require.NoError(t, err)
	path := filepath.Join(dir, native.SocketName)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); serveHooks(ctx, l, keptLimits{}, slog.New(slog.DiscardHandler)) }()

	ask := func(text string) (reply native.Reply) {
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write([]byte(text + "\n"))
		require.NoError(t, err)
		require.NoError(t, json.NewDecoder(c).Decode(&reply))
		return reply
	}
	reply := ask(`{"cgroup":"/cg","limits":[{"uuid":"GPU-a","bytes":5}]}`)
	assert.Equal(t, native.Reply{States: []native.State{{UUID: "GPU-a", Hard: 5}}}, reply)
	for _, bad := range []string{"{}", `{"cgroup":"relative","limits":[{"uuid":"GPU-a","bytes":5}]}`, `{"cgroup":"/cg"}`, "not JSON"} {
		assert.Contains(t, ask(bad).Error, "read the request", bad)
	}
	cancel()
	<-ended
	again, err := listenForHooks(dir)
	require.NoError(t, err, "after an agent that was killed")
	require.NoError(t, again.Close())
}

// usedLimits reports that much as used.
type usedLimits struct {
	keptLimits
	used uint64
}

func (u usedLimits) MemoryLimit(ctx context.Context, uuid, cgroup string) (hardware.MemoryLimit, error) {
	m, err := u.keptLimits.MemoryLimit(ctx, uuid, cgroup)
	m.Used = u.used
	return m, err
}
