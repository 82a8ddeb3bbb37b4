package nodeview_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

func read(t *testing.T, dir string) view.Node {
	n, err := nodeview.Read(context.Background(), dir)
	require.NoError(t, err)
	return n
}

func share(uuid string, mib int64, cores int) grant.Share {
	return grant.Share{UUID: uuid, MemoryMiB: mib, CorePercent: cores}
}

func TestReadAnEmptyNode(t *testing.T) {
	n := read(t, nodetest.NewStateDir(t).Dir)
	assert.Equal(t, "node-1", n.Name)
	assert.Equal(t, "575.57.08", n.DriverVersion)
	assert.Equal(t, "12.9", n.CUDAVersion)
	assert.Equal(t, nodetest.Time, n.GPUsReadAt)
	assert.Equal(t, []view.Container{}, n.Containers, "an empty list, and no null in JSON")
	assert.Empty(t, n.Problems)
	require.Len(t, n.GPUs, 2)
	assert.Equal(t, view.GPU{
		UUID: nodetest.H200, Model: "NVIDIA H200", MemoryMiB: 143771, GrantableMiB: 143771, GrantableCores: 100, GrantableReplicas: 10, Healthy: true,
	}, n.GPUs[0])
}

func TestReadGrantsAndUsage(t *testing.T) {
	s := nodetest.NewStateDir(t)
	s.Claim("c2", "second", share(nodetest.H200, 2000, 20), share(nodetest.T4, 1000, 0))
	s.Claim("c1", "first", share(nodetest.H200, 1000, 10))
	s.Use("c2", 0, 5, 7)
	s.Use("c2", 3, 10, 0)
	s.Use("c1", 0, 100)

	n := read(t, s.Dir)
	require.Len(t, n.Containers, 2)
	assert.Equal(t, "default/first", n.Containers[0].Pod, "by pod, then by container")
	second := n.Containers[1]
	assert.Equal(t, view.Container{
		ContainerID: "c2", Pod: "default/second", PodUID: "uid-second", Name: "main", Owner: "nri", State: "active",
		Enforcement: "preload", CreatedAt: nodetest.Time, Shares: []view.Share{
			{UUID: nodetest.H200, MemoryMiB: 2000, CorePercent: 20, UsedBytes: 15, Processes: 2},
			{UUID: nodetest.T4, MemoryMiB: 1000, UsedBytes: 7, Processes: 1},
		},
	}, second)
	assert.Equal(t, uint64(115), n.GPUs[0].UsedBytes)
	assert.Equal(t, int64(3000), n.GPUs[0].GrantedMemoryMiB)
	assert.Equal(t, 30, n.GPUs[0].GrantedCores)
	assert.Equal(t, 2, n.GPUs[0].GrantedContainers)
	assert.Equal(t, uint64(7), n.GPUs[1].UsedBytes)
	assert.Empty(t, n.Problems)
}

func TestReadHealth(t *testing.T) {
	s := nodetest.NewStateDir(t)
	file := nodetest.File()
	file.Health = map[string]nvidia.Health{nodetest.H200: {Reason: "XID 79"}, nodetest.T4: {Healthy: true}}
	require.NoError(t, node.Write(s.Dir, file))
	n := read(t, s.Dir)
	assert.False(t, n.GPUs[0].Healthy)
	assert.Equal(t, "XID 79", n.GPUs[0].Unhealthy)
	assert.True(t, n.GPUs[1].Healthy)
	assert.Equal(t, "XID 79", file.Unhealthy("MIG-1", nodetest.H200), "a MIG device is as its GPU is")
}

func TestReadCordons(t *testing.T) {
	s := nodetest.NewStateDir(t)
	require.NoError(t, s.Ledger.Cordon(t.Context(), nodetest.T4))
	n := read(t, s.Dir)
	assert.False(t, n.GPUs[0].Cordoned)
	assert.True(t, n.GPUs[1].Cordoned)
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "cordoned"), []byte("x\x1b"), 0o600))
	n = read(t, s.Dir)
	assert.False(t, n.GPUs[1].Cordoned)
	require.Len(t, n.Problems, 1)
	assert.Contains(t, n.Problems[0], "read the cordons")
}

// What a tenant writes into its own usage file stays its own.
func TestReadAHostileUsageFile(t *testing.T) {
	for _, test := range []struct {
		description string
		spoil       func(t *testing.T, s *nodetest.StateDir)
		wantUsed    uint64
		wantProblem string
	}{
		{"the largest numbers, twice", func(_ *testing.T, s *nodetest.StateDir) {
			s.Use("bad", 0, math.MaxUint64)
			s.Use("bad", 1, math.MaxUint64)
		}, 1000<<20 + 100, ""}, // the limit of the one, and what the other has
		{"garbage", func(t *testing.T, s *nodetest.StateDir) {
			require.NoError(t, os.WriteFile(s.Path("bad", "usage"), []byte("garbage\x1b[2J\nproblem: none"), 0o600))
		}, 100, "container bad: read usage"},
		{"cut short", func(t *testing.T, s *nodetest.StateDir) {
			require.NoError(t, os.Truncate(s.Path("bad", "usage"), 10))
		}, 100, "container bad: read usage"},
		{"a GPU of another name", func(t *testing.T, s *nodetest.StateDir) {
			file, err := os.OpenFile(s.Path("bad", "usage"), os.O_WRONLY, 0)
			require.NoError(t, err)
			defer file.Close()
			_, err = file.WriteAt(make([]byte, 16), 64)
			require.NoError(t, err)
		}, 100, "header uuid 0 is not that of"},
		{"grown", func(t *testing.T, s *nodetest.StateDir) {
			s.Use("bad", 0, 7)
			require.NoError(t, os.Truncate(s.Path("bad", "usage"), 1<<30))
		}, 107, "it has 1073741824 bytes"},
		{"cut behind what is used", func(t *testing.T, s *nodetest.StateDir) {
			s.Use("bad", 0, 7)
			require.NoError(t, os.Truncate(s.Path("bad", "usage"), 8192))
		}, 107, "it has 8192 bytes"},
		{"a link to another's", func(t *testing.T, s *nodetest.StateDir) {
			require.NoError(t, os.Remove(s.Path("bad", "usage")))
			require.NoError(t, os.Symlink(s.Path("good", "usage"), s.Path("bad", "usage")))
		}, 100, "container bad: read usage"},
		{"a pipe without a writer", func(t *testing.T, s *nodetest.StateDir) {
			require.NoError(t, os.Remove(s.Path("bad", "usage")))
			require.NoError(t, syscall.Mkfifo(s.Path("bad", "usage"), 0o600))
		}, 100, "not a regular file"},
	} {
		t.Run(test.description, func(t *testing.T) {
			s := nodetest.NewStateDir(t)
			s.Claim("bad", "bad", share(nodetest.H200, 1000, 10))
			s.Claim("good", "good", share(nodetest.H200, 1000, 10))
			s.Use("good", 0, 100)
			test.spoil(t, s)
			n := read(t, s.Dir)
			assert.Equal(t, test.wantUsed, n.GPUs[0].UsedBytes)
			assert.Equal(t, uint64(100), n.Containers[1].Shares[0].UsedBytes)
			assert.Equal(t, int64(2000), n.GPUs[0].GrantedMemoryMiB)
			if test.wantProblem == "" {
				assert.Empty(t, n.Problems)
				return
			}
			require.Len(t, n.Problems, 1)
			assert.Contains(t, n.Problems[0], test.wantProblem)
			assert.Contains(t, n.Problems[0], n.Containers[0].UsageProblem)
			assert.Empty(t, n.Containers[1].UsageProblem)
			assert.NotContains(t, n.Problems[0], "\x1b")
			assert.NotContains(t, n.Problems[0], "\n")
		})
	}
}

// A file of another release is reported as such.
func TestReadAUsageFileOfAnotherVersion(t *testing.T) {
	s := nodetest.NewStateDir(t)
	s.Claim("newer", "newer", share(nodetest.H200, 1000, 10))
	file, err := os.OpenFile(s.Path("newer", "usage"), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer file.Close()
	_, err = file.WriteAt([]byte{2}, 8) // the layout's number
	require.NoError(t, err)
	n := read(t, s.Dir)
	assert.True(t, n.Containers[0].UsageUnknown)
	assert.Contains(t, n.Containers[0].UsageProblem, "of this version")
	require.Len(t, n.Problems, 1)

	_, err = file.WriteAt([]byte{1, 0, 0, 0, 1}, 8) // the version that is known, with other sizes
	require.NoError(t, err)
	n = read(t, s.Dir)
	assert.False(t, n.Containers[0].UsageUnknown)
	assert.NotEmpty(t, n.Containers[0].UsageProblem)
}

// A container writes over its file, cuts and fills it, while it is read: no other container's
// numbers move, nor what is granted.
func TestReadWhileAContainerWrites(t *testing.T) {
	s := nodetest.NewStateDir(t)
	s.Claim("bad", "bad", share(nodetest.H200, 1000, 10))
	s.Claim("good", "good", share(nodetest.H200, 1000, 10))
	s.Use("good", 0, 100)
	want := read(t, s.Dir).Containers[1]
	path := s.Path("bad", "usage")
	made, err := os.ReadFile(path)
	require.NoError(t, err)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		noise := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-stop:
				return
			default:
			}
			switch at := noise.IntN(16 << 10); noise.IntN(4) {
			case 0:
				_ = os.Truncate(path, noise.Int64N(int64(2*len(made))))
			case 1:
				_ = os.WriteFile(path, made, 0o666)
			default:
				if f, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
					_, _ = f.WriteAt(bytes.Repeat([]byte{byte(noise.Uint32())}, noise.IntN(8<<10)), int64(at))
					_ = f.Close()
				}
			}
		}
	}()
	for range 300 {
		n := read(t, s.Dir)
		require.Equal(t, want, n.Containers[1])
		require.Equal(t, int64(2000), n.GPUs[0].GrantedMemoryMiB)
		require.GreaterOrEqual(t, n.GPUs[0].UsedBytes, uint64(100))
		for _, p := range n.Problems {
			require.Contains(t, p, "container bad: ")
		}
	}
	close(stop)
	<-stopped
}

func TestReadReleasedAndCorrupt(t *testing.T) {
	s := nodetest.NewStateDir(t)
	s.Claim("released", "a", share(nodetest.H200, 1000, 10))
	s.Claim("recovered", "b", share(nodetest.H200, 2000, 20))
	s.Claim("unknown", "c", share(nodetest.H200, 4000, 40))
	require.NoError(t, s.Ledger.Release(context.Background(), "released"))
	require.NoError(t, os.Remove(s.Path("released", "usage")))
	for _, id := range []string{"recovered", "unknown"} {
		require.NoError(t, os.WriteFile(s.Path(id, "grant.json"), []byte("{"), 0o600))
	}
	require.NoError(t, os.Remove(s.Path("unknown", "limits")))

	n := read(t, s.Dir)
	states := map[string]view.Container{}
	for _, c := range n.Containers {
		states[c.ContainerID] = c
	}
	assert.Equal(t, "released", states["released"].State)
	assert.Equal(t, "corrupt", states["recovered"].State)
	require.Len(t, states["recovered"].Shares, 1, "of its limits file, as the agent reserves it")
	assert.Equal(t, int64(2000), states["recovered"].Shares[0].MemoryMiB)
	assert.Equal(t, "corrupt", states["unknown"].State)
	assert.Equal(t, []view.Share{}, states["unknown"].Shares)
	assert.Equal(t, int64(2000), n.GPUs[0].GrantedMemoryMiB)
	require.Len(t, n.Problems, 2, "the released one's missing file is none")
	assert.Contains(t, n.Problems[0], "container recovered: read grant.json")
	assert.Contains(t, n.Problems[1], "container unknown: read grant.json")
}

// The record of a docker container can't be read: the problem has the path.
func TestReadDamagedRecord(t *testing.T) {
	s := nodetest.NewStateDir(t)
	claim := ledger.Claim{ContainerID: "web", Owner: ledger.OwnerRuntime, Container: "web", Shares: []grant.Share{share(nodetest.H200, 1000, 10)}}
	_, err := s.Ledger.Claim(t.Context(), claim, node.Capacities(nodetest.File().Devices), func(dir string) error {
		return errors.Join(limiter.CreateUsage(limiter.UsagePath(dir), []string{nodetest.H200}), os.WriteFile(filepath.Join(dir, "runtime.json"), []byte("{"), 0o600))
	})
	require.NoError(t, err)
	n := read(t, s.Dir)
	require.Len(t, n.Problems, 1)
	assert.Contains(t, n.Problems[0], "container web: the record of a claim is damaged: "+s.Path("web", "runtime.json"))
}

func TestReadWithoutGPUs(t *testing.T) {
	s := nodetest.NewStateDir(t)
	s.Claim("c", "p", share(nodetest.H200, 1000, 10))
	t.Run("GPUs that have faults", func(t *testing.T) {
		file := nodetest.File()
		file.Node.Faults = []nvidia.Fault{{Index: 2, Message: "GPU 2: nvmlDeviceGetUUID: GPU is lost"}}
		require.NoError(t, node.Write(s.Dir, file))
		n := read(t, s.Dir)
		assert.Len(t, n.GPUs, 2)
		assert.Equal(t, []string{"GPU 2: nvmlDeviceGetUUID: GPU is lost"}, n.Problems)
	})
	for description, spoil := range map[string]func(path string) error{
		"no node.json":           os.Remove,
		"a node.json of no sort": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"another version":        func(path string) error { return os.WriteFile(path, []byte(`{"version":99}`), 0o600) },
	} {
		t.Run(description, func(t *testing.T) {
			require.NoError(t, node.Write(s.Dir, nodetest.File()))
			require.NoError(t, spoil(filepath.Join(s.Dir, "node.json")))
			n := read(t, s.Dir)
			assert.Equal(t, []view.GPU{}, n.GPUs)
			assert.Len(t, n.Containers, 1, "the ledger is readable")
			require.Len(t, n.Problems, 1)
			assert.Contains(t, n.Problems[0], "GPUs: ")
		})
	}
}

// Reading creates nothing: a wrong directory is an error with a hint.
func TestReadMakesNothing(t *testing.T) {
	empty := t.TempDir()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	odd := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(odd, "containers"), nil, 0o600))
	for description, dir := range map[string]string{
		"absent": filepath.Join(empty, "none"), "empty": empty, "a file": file, "a file in the ledger's place": odd,
	} {
		_, err := nodeview.Read(context.Background(), dir)
		require.ErrorContains(t, err, "--state-dir", description)
	}
	entries, err := os.ReadDir(empty)
	require.NoError(t, err)
	assert.Empty(t, entries)
	entries, err = os.ReadDir(odd)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}

// Reading creates, repairs and locks nothing, and waits for no lock.
func TestReadChangesNothing(t *testing.T) {
	s := nodetest.NewStateDir(t)
	s.Claim("c", "p", share(nodetest.H200, 1000, 10))
	s.Claim("corrupt", "q", share(nodetest.H200, 1000, 10))
	require.NoError(t, os.WriteFile(s.Path("corrupt", "grant.json"), []byte("{"), 0o600))
	require.NoError(t, os.Mkdir(s.Ledger.Dir("empty"), 0o755))  // a ledger would remove it
	require.NoError(t, os.Remove(filepath.Join(s.Dir, "lock"))) // a ledger would make it
	before := nodetest.Tree(t, s.Dir)
	assert.Len(t, read(t, s.Dir).Containers, 2)
	assert.Equal(t, before, nodetest.Tree(t, s.Dir))
}

func TestReadWhileTheLedgerIsLocked(t *testing.T) {
	s := nodetest.NewStateDir(t)
	s.Claim("c", "p", share(nodetest.H200, 1000, 10))
	lock, err := os.OpenFile(filepath.Join(s.Dir, "lock"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	assert.Len(t, read(t, s.Dir).Containers, 1)
}

// An interrupted change is reported, and the node is readable.
func TestReadAnInterruptedChange(t *testing.T) {
	s := nodetest.NewStateDir(t)
	s.Claim("c", "p", share(nodetest.H200, 1000, 10))
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "generation"), []byte{9, 0, 0, 0, 0, 0, 0, 0}, 0o600))
	n := read(t, s.Dir)
	assert.Len(t, n.Containers, 1)
	require.Len(t, n.Problems, 1)
	assert.Contains(t, n.Problems[0], "may be inconsistent")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := nodeview.Read(ctx, s.Dir)
	require.ErrorIs(t, err, context.Canceled)
}

// What a container's library reports beside its memory: when it launched last, by a clock
// that doesn't stand still when the day's is set, and what it was refused.
func TestReadLastLaunchAndRefusals(t *testing.T) {
	s := nodetest.NewStateDir(t)
	s.Claim("c", "p", share(nodetest.H200, 1000, 10), share(nodetest.T4, 1000, 10))
	began := time.Now()
	var now unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	file, err := os.OpenFile(s.Path("c", "usage"), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer file.Close()
	bucket := func(gpu int, lastLaunch, refused uint64) { // as limiter/src/LAYOUT.md draws it
		_, err := file.WriteAt(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, lastLaunch), refused), int64(2048+128*gpu+40))
		require.NoError(t, err)
	}
	bucket(0, uint64(now.Nano())-uint64(time.Millisecond), 3)
	bucket(1, math.MaxUint64, math.MaxUint64)
	shares := read(t, s.Dir).Containers[0].Shares
	ended := time.Now() // the two clocks are not read at one moment
	assert.WithinRange(t, shares[0].LastLaunch, began.Add(-time.Millisecond-ended.Sub(began)), ended)
	assert.Equal(t, uint64(3), shares[0].RefusedAllocations)
	assert.True(t, shares[1].LastLaunch.IsZero(), "in the future: the container has written that")
	assert.Equal(t, uint64(math.MaxUint64), shares[1].RefusedAllocations)
}

// The enforcement of a claim in common is that of its weakest container.
func TestEnforcementOfACommonClaim(t *testing.T) {
	dir := nodetest.NewStateDir(t)
	shown := func() string {
		n, err := nodeview.Read(t.Context(), dir.Dir)
		require.NoError(t, err)
		require.Len(t, n.Containers, 1)
		return n.Containers[0].Enforcement
	}
	add := func(id, mode string) {
		c := ledger.Claim{
			ContainerID: id, Owner: ledger.OwnerNRI, PodUID: "u", PodNamespace: "d", PodName: "p", Container: id, Mode: mode,
			Shares: []grant.Share{share(nodetest.H200, 1000, 10)}, Source: grant.SourceResourceClaim, ResourceClaims: []string{"a.gpu"},
		}
		c = c.Common()
		_, err := dir.Ledger.Claim(t.Context(), c, node.Capacities(nodetest.File().Devices), dir.Populate(c))
		require.NoError(t, err)
	}
	for i, step := range []struct{ mode, want string }{
		{"preload+library", "preload+library"}, {"library", "library"}, {"preload+library", "library"}, {"preload", "preload"}, {"none", "none"}, {"library", "none"},
	} {
		add("c"+strconv.Itoa(i), step.mode)
		require.Equal(t, step.want, shown())
	}
	require.NoError(t, dir.Ledger.Release(t.Context(), "c4"))
	require.Equal(t, "preload", shown())
}
