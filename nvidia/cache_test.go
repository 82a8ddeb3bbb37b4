package nvidia

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCacheIsEmptyBeforeTheFirstRead(t *testing.T) {
	c := NewCache(dgxa100.New(), CacheOptions{})
	assert.Equal(t, Snapshot{}, c.Snapshot())
	assert.NoError(t, c.Close(), "nothing was opened")
}

func TestCacheRunReadsAtEveryIntervalAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := dgxa100.New()
		var count atomic.Int64
		count.Store(8)
		s.DeviceGetCountFunc = func() (int, nvml.Return) { return int(count.Load()), nvml.SUCCESS }
		c := NewCache(s, CacheOptions{Interval: 10 * time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, c.Run(ctx)) })

		synctest.Wait()
		assert.Len(t, c.Node().GPUs, 8, "read at once")
		count.Store(5)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		assert.Len(t, c.Node().GPUs, 5, "read at the interval")
		assert.Len(t, s.InitCalls(), 1, "opened once")

		cancel()
		wg.Wait()
		assert.Len(t, s.ShutdownCalls(), 1, "closed by its owner")
	})
}

func TestCacheKeepsTheLastGoodNode(t *testing.T) {
	var log strings.Builder
	s := dgxa100.New()
	c := NewCache(s, CacheOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, c.Refresh(t.Context()))
	taken := c.Snapshot().Taken

	s.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	for range 3 {
		require.ErrorIs(t, c.Refresh(t.Context()), nvml.ERROR_UNKNOWN)
	}
	snap := c.Snapshot()
	assert.Len(t, snap.Node.GPUs, 8)
	assert.Equal(t, taken, snap.Taken)
	assert.ErrorIs(t, snap.Err, nvml.ERROR_UNKNOWN)
	assert.Equal(t, 1, strings.Count(log.String(), "reading the GPUs failed"), "logged once: %s", log.String())
	assert.Len(t, s.ShutdownCalls(), 3, "closed after each failure, to open again")

	s.SetMockFuncs()
	require.NoError(t, c.Refresh(t.Context()))
	assert.NoError(t, c.Snapshot().Err)
	assert.Len(t, s.InitCalls(), 4)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	assert.Len(t, s.ShutdownCalls(), 4, "closed once")
}

func TestCacheFindsADriverThatComesLater(t *testing.T) {
	s := dgxa100.New()
	s.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
	c := NewCache(s, CacheOptions{})
	require.ErrorIs(t, c.Refresh(t.Context()), nvml.ERROR_LIBRARY_NOT_FOUND)
	assert.Empty(t, s.ShutdownCalls(), "what didn't open isn't closed")
	s.SetMockFuncs()
	require.NoError(t, c.Refresh(t.Context()))
	assert.Len(t, c.Node().GPUs, 8)
}

func TestCacheRefreshHeedsItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := dgxa100.New()
	c := NewCache(s, CacheOptions{})
	handle := s.DeviceGetHandleByIndexFunc
	s.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 3 {
			cancel()
		}
		return handle(i)
	}
	require.ErrorIs(t, c.Refresh(ctx), context.Canceled)
	require.ErrorIs(t, c.Refresh(ctx), context.Canceled)
	assert.Empty(t, c.Node().GPUs, "half a node is none")
}

func TestCacheSaysWhatChanged(t *testing.T) {
	var log strings.Builder
	s := dgxa100.New()
	c := NewCache(s, CacheOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, c.Refresh(t.Context()))
	assert.Equal(t, 8, strings.Count(log.String(), "GPU found"))

	lost := s.Devices[6].(*server.Device)
	lost.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	for range 2 {
		require.NoError(t, c.Refresh(t.Context()))
	}
	assert.Equal(t, 1, strings.Count(log.String(), "GPU gone"))
	assert.Equal(t, 1, strings.Count(log.String(), "reading a GPU failed"))
	assert.Contains(t, log.String(), lost.UUID)
}

func TestCacheReadersDontWait(t *testing.T) {
	s := dgxa100.New()
	c := NewCache(s, CacheOptions{})
	require.NoError(t, c.Refresh(t.Context()))

	hang, entered := make(chan struct{}), make(chan struct{})
	count := s.DeviceGetCountFunc
	s.DeviceGetCountFunc = func() (int, nvml.Return) {
		close(entered)
		<-hang
		return count()
	}
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, c.Refresh(t.Context())) })
	<-entered
	for range 100 {
		assert.Len(t, c.Node().GPUs, 8)
	}
	close(hang)
	wg.Wait()
}

func TestCacheReadsTheTopologyWhenGPUsChange(t *testing.T) {
	var log strings.Builder
	s := dgxa100.New()
	asked := 0
	for _, d := range s.Devices {
		d.(*server.Device).GetTopologyCommonAncestorFunc = func(nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
			asked++
			return nvml.TOPOLOGY_NODE, nvml.SUCCESS
		}
		d.(*server.Device).GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	}
	c := NewCache(s, CacheOptions{Topology: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		require.NoError(t, c.Refresh(t.Context()))
	}
	assert.Equal(t, 8*7/2, asked, "read once")
	require.Len(t, c.Snapshot().Topology.UUIDs, 8)

	s.DeviceGetCountFunc = func() (int, nvml.Return) { return 5, nvml.SUCCESS }
	require.NoError(t, c.Refresh(t.Context()))
	require.Len(t, c.Snapshot().Topology.UUIDs, 5)

	s.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	require.Error(t, c.Refresh(t.Context()))
	require.Len(t, c.Snapshot().Topology.UUIDs, 5, "the last that could be read")

	calls := 0
	s.DeviceGetCountFunc = func() (int, nvml.Return) {
		calls++
		return 5, []nvml.Return{nvml.SUCCESS, nvml.ERROR_UNKNOWN}[(calls+1)%2]
	}
	require.NoError(t, c.Refresh(t.Context()), "the GPUs can be read, how they are connected can't")
	require.Len(t, c.Snapshot().Topology.UUIDs, 5)
	assert.Contains(t, log.String(), "reading the GPU topology failed")
	require.NoError(t, c.Close())
}

func (c *Cache) Health(uuid string) (h Health, known bool) {
	h, known = c.Snapshot().Health[uuid]
	return h, known
}
