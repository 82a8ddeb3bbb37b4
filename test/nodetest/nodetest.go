// Package nodetest creates an agent's state directory for tests.
package nodetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
)

// The GPUs of the node.
const (
	H200 = "GPU-00000001-5151-4000-8000-000000000001"
	T4   = "GPU-00000002-5151-4000-8000-000000000002"
)

// Time is the time of all records.
var Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// File returns the node's node.json.
func File() node.File {
	return node.File{
		Name: "node-1", AgentVersion: "v1.0.0", WrittenAt: Time,
		Devices: []node.Device{
			{UUID: H200, GPU: H200, MemoryMiB: 143771, CorePercent: 100, Replicas: 10},
			{UUID: T4, GPU: T4, MemoryMiB: 15360, CorePercent: 100, Replicas: 10},
		},
		Node: nvidia.Node{DriverVersion: "575.57.08", CUDAVersion: "12.9", GPUs: []nvidia.GPU{
			{UUID: H200, Index: 0, Model: "NVIDIA H200", MemoryMiB: 143771},
			{UUID: T4, Index: 1, Model: "Tesla T4", MemoryMiB: 15360},
		}},
	}
}

type StateDir struct {
	Dir    string
	Ledger *ledger.Ledger
	file   node.File
	tb     testing.TB
}

// NewStateDir creates one with an empty ledger.
func NewStateDir(tb testing.TB) *StateDir { return NewStateDirOf(tb, File()) }

// NewStateDirOf creates one for another node.
func NewStateDirOf(tb testing.TB, file node.File) *StateDir {
	s := &StateDir{Dir: filepath.Join(tb.TempDir(), "gpuslice"), file: file, tb: tb}
	var err error
	s.Ledger, err = ledger.Open(s.Dir)
	require.NoError(tb, err)
	tb.Cleanup(func() { s.Ledger.Close() })
	require.NoError(tb, node.Write(s.Dir, file))
	return s
}

// Claim reserves shares for a pod.
func (s *StateDir) Claim(id, pod string, shares ...grant.Share) {
	claim := ledger.Claim{
		ContainerID: id, Owner: ledger.OwnerNRI, PodUID: "uid-" + pod, PodNamespace: "default", PodName: pod,
		Container: "main", Shares: shares, Mode: "preload", CreatedAt: Time,
	}
	_, err := s.Ledger.Claim(context.Background(), claim, node.Capacities(s.file.Devices), s.Populate(claim))
	require.NoError(s.tb, err)
}

// Populate writes the limiter's files of a claim.
func (s *StateDir) Populate(claim ledger.Claim) func(dir string) error {
	settings := oci.Settings{LibraryPath: "/lib/libvgpu.so", PreloadPath: "/lib/ld.so.preload"}
	return func(dir string) error { return oci.Populate(dir, claim, settings) }
}

// Path returns the path of a container's file.
func (s *StateDir) Path(id, file string) string {
	dir := s.Ledger.Dir(id)
	for _, path := range []string{limiter.LimitsPath(dir), limiter.UsagePath(dir)} {
		if filepath.Base(path) == file {
			return path
		}
	}
	return filepath.Join(dir, file)
}

// Use writes a process' memory into a usage file.
func (s *StateDir) Use(id string, process int, bytes ...uint64) {
	const (
		highWater            = 1024
		header, slot, cells  = 4096, 1280, 128
		cellSize, ownerAlive = 64, 1
	)
	file, err := os.OpenFile(s.Path(id, "usage"), os.O_RDWR, 0)
	require.NoError(s.tb, err)
	defer file.Close()
	write := func(at int, data []byte) {
		_, err := file.WriteAt(data, int64(at))
		require.NoError(s.tb, err)
	}
	le := binary.LittleEndian
	write(highWater, le.AppendUint32(nil, uint32(process+1)))
	write(header+process*slot, le.AppendUint32(nil, ownerAlive))
	for i, n := range bytes {
		write(header+process*slot+cells+i*cellSize, le.AppendUint64(nil, n))
	}
}

// Compute writes the compute time on a GPU.
func (s *StateDir) Compute(id string, gpu int, busy, waited time.Duration, launches uint64) {
	const (
		compute, size               = 2048, 128
		worked, throttled, launched = 8, 24, 32
	)
	file, err := os.OpenFile(s.Path(id, "usage"), os.O_RDWR, 0)
	require.NoError(s.tb, err)
	defer file.Close()
	for offset, value := range map[int]uint64{worked: uint64(busy), throttled: uint64(waited), launched: launches} {
		_, err := file.WriteAt(binary.LittleEndian.AppendUint64(nil, value), int64(compute+gpu*size+offset))
		require.NoError(s.tb, err)
	}
}

// Tree is everything below a directory that a change would change.
func Tree(t testing.TB, dir string) string {
	t.Helper()
	var text strings.Builder
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintln(&text, path, st.Ino, st.Mode, st.Size, st.Mtim, st.Ctim)
		return nil
	}))
	return text.String()
}
