package nvidia

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// eventServer is a driver of eight GPUs with events.
type eventServer struct {
	*server.Server
	happens chan nvml.EventData // unbuffered: sent is received
	sets    atomic.Int32        // made and not freed
	lost    [8]atomic.Bool      // GPUs that can't be reached
	waits   atomic.Bool         // a wait fails: a GPU is lost
	dead    atomic.Bool         // nothing can be read
}

func newEventServer() *eventServer {
	s := &eventServer{Server: dgxa100.New(), happens: make(chan nvml.EventData)}
	s.mock()
	return s
}

func (s *eventServer) mock() {
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		s.sets.Add(1)
		free := func() nvml.Return {
			s.sets.Add(-1)
			return nvml.SUCCESS
		}
		return &mock.EventSet{WaitFunc: s.wait, FreeFunc: free}, nvml.SUCCESS
	}
	count := s.DeviceGetCountFunc
	s.DeviceGetCountFunc = func() (int, nvml.Return) {
		if s.dead.Load() {
			return 0, nvml.ERROR_UNKNOWN
		}
		return count()
	}
	for i := range s.Devices {
		d := s.device(i)
		d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
		memory := d.GetMemoryInfoFunc
		d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
			if s.lost[i].Load() {
				return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST
			}
			return memory()
		}
	}
}

func (s *eventServer) device(i int) *server.Device { return s.Devices[i].(*server.Device) }

func (s *eventServer) wait(milliseconds uint32) (nvml.EventData, nvml.Return) {
	if s.waits.Load() {
		return nvml.EventData{}, nvml.ERROR_GPU_IS_LOST
	}
	select {
	case data := <-s.happens:
		return data, nvml.SUCCESS
	case <-time.After(time.Duration(milliseconds) * time.Millisecond):
		return nvml.EventData{}, nvml.ERROR_TIMEOUT
	}
}

func (s *eventServer) xid(dev nvml.Device, code uint64) {
	s.happens <- nvml.EventData{Device: dev, EventType: nvml.EventTypeXidCriticalError, EventData: code}
}

// runCache runs a cache in a bubble until the test's end.
func runCache(t *testing.T, lib nvml.Interface, o CacheOptions) *Cache {
	o.Events = true
	c := NewCache(lib, o)
	c.kernel = func() string { return "" }
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, c.Run(ctx)) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	synctest.Wait()
	<-c.Changed() // of the first reading
	return c
}

func unhealthy(c *Cache) (uuids []string) {
	for _, gpu := range c.Node().GPUs {
		if h, known := c.Health(gpu.UUID); !known || !h.Healthy {
			uuids = append(uuids, gpu.UUID)
		}
	}
	return uuids
}

func TestXIDMakesAGPUUnhealthyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventServer()
		c := runCache(t, s, CacheOptions{Interval: time.Hour, Settle: time.Minute, IgnoreXIDs: []uint{63}})
		changed := c.Changed()
		require.Empty(t, unhealthy(c))
		started := time.Now()

		s.xid(s.Devices[2], 31)
		s.xid(s.Devices[2], 63)
		s.happens <- nvml.EventData{Device: s.Devices[2], EventType: nvml.EventTypeDoubleBitEccError}
		synctest.Wait()
		require.Empty(t, unhealthy(c))
		require.Empty(t, changed, "no change")

		s.xid(s.Devices[2], 94)
		<-changed
		synctest.Wait()
		require.Equal(t, []string{s.device(2).UUID}, unhealthy(c))
		require.Equal(t, started, time.Now(), "at once")
		<-changed
		synctest.Wait()
		require.Empty(t, unhealthy(c), "it settled")
		require.WithinDuration(t, started.Add(time.Minute), time.Now(), eventWait)

		s.xid(nil, 94)
		<-changed
		synctest.Wait()
		require.Len(t, unhealthy(c), 8, "an event of no GPU")
		require.Len(t, s.InitCalls(), 1)
		_, known := c.Health("GPU-none")
		require.False(t, known)
	})
}

func TestALostGPUIsFoundAtOnceAndFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventServer()
		c := runCache(t, s, CacheOptions{Interval: 30 * time.Second, Settle: time.Minute})
		changed := c.Changed()
		started := time.Now()
		synctest.Wait()

		lost := s.device(5)
		s.lost[5].Store(true)
		s.waits.Store(true)
		<-changed
		synctest.Wait()
		require.WithinDuration(t, started, time.Now(), eventWait)
		h, known := c.Health(lost.UUID)
		require.True(t, known)
		require.False(t, h.Healthy)
		require.Len(t, c.Node().GPUs, 7)
		require.Empty(t, unhealthy(c), "the others")
		time.Sleep(25 * time.Second)
		require.Len(t, s.InitCalls(), 1, "waits that fail again don't make it read again")
		time.Sleep(10 * time.Second)
		require.Len(t, s.InitCalls(), 2, "opened again at the interval, to find what is back")

		s.lost[5].Store(false)
		s.waits.Store(false)
		<-changed
		synctest.Wait()
		require.Len(t, c.Node().GPUs, 8)
		require.Equal(t, []string{lost.UUID}, unhealthy(c))
		<-changed
		synctest.Wait()
		require.Empty(t, unhealthy(c))
		opened := len(s.InitCalls())
		time.Sleep(time.Hour)
		require.Len(t, s.InitCalls(), opened, "nothing missing: not opened again")
		require.EqualValues(t, 1, s.sets.Load())
	})
}

func TestEveryGPUIsUnhealthyWithoutADriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventServer()
		c := runCache(t, s, CacheOptions{Interval: 30 * time.Second, Settle: time.Minute})
		s.dead.Store(true)
		time.Sleep(31 * time.Second)
		require.Len(t, unhealthy(c), 8)
		require.Zero(t, s.sets.Load(), "the events are closed with NVML")
		s.dead.Store(false)
		time.Sleep(30 * time.Second)
		require.Len(t, unhealthy(c), 8, "settling")
		time.Sleep(61 * time.Second)
		require.Empty(t, unhealthy(c))
	})
}

// Events fail in several ways: one warning, and reading still finds a lost GPU.
func TestWithoutEventsTheGPUsArePolled(t *testing.T) {
	noSymbol := func(s *eventServer) {
		s.LookupSymbolFunc = func(string) error { return nvml.ERROR_FUNCTION_NOT_FOUND }
	}
	for _, tt := range []struct {
		description string
		breakIt     func(*eventServer)
		sets        int
		logged      string
	}{
		{"a library without events", noSymbol, 0, "nvmlEventSetCreate"},
		{"no event set", func(s *eventServer) {
			s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
		}, 0, "nvmlEventSetCreate"},
		{"no GPU has events", func(s *eventServer) {
			for i := range s.Devices {
				s.device(i).RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_NOT_SUPPORTED }
			}
		}, 0, "nvmlDeviceRegisterEvents"},
		{"one GPU has none", func(s *eventServer) {
			s.device(3).RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_NOT_SUPPORTED }
		}, 1, "GPU 3 (GPU-"},
	} {
		t.Run(tt.description, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				s := newEventServer()
				tt.breakIt(s)
				c := runCache(t, s, CacheOptions{Interval: 30 * time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))})
				require.EqualValues(t, tt.sets, s.sets.Load())
				time.Sleep(5 * time.Minute)
				s.lost[1].Store(true)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				h, _ := c.Health(s.device(1).UUID)
				assert.False(t, h.Healthy)
				assert.Equal(t, 1, strings.Count(log.String(), "GPUs without events of critical errors"), "%s", log.String())
				assert.Contains(t, log.String(), tt.logged)
			})
		})
	}
}

func TestRunStopsPromptly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventServer()
		c := NewCache(s, CacheOptions{Interval: time.Hour, Events: true})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, c.Run(ctx)) })
		synctest.Wait()
		started := time.Now()
		cancel()
		wg.Wait()
		require.LessOrEqual(t, time.Since(started), eventWait)
		require.Zero(t, s.sets.Load())
		require.Len(t, s.ShutdownCalls(), 1)
	})
}

// NVML lists GPUs when it is opened: one that is bound to the driver later is found
// by the kernel's list.
func TestANewGPUIsFoundByTheKernelsList(t *testing.T) {
	s := dgxa100.New()
	proc := fstest.MapFS{"gpus/0000:07:00.0/information": {}}
	c := NewCache(s, CacheOptions{})
	c.kernel = kernelGPUs(proc)
	for range 2 {
		require.NoError(t, c.Refresh(t.Context()))
	}
	require.Len(t, s.InitCalls(), 1)
	proc["gpus/0000:0f:00.0/information"] = &fstest.MapFile{}
	for range 2 {
		require.NoError(t, c.Refresh(t.Context()))
	}
	require.Len(t, s.InitCalls(), 2)
	require.Empty(t, kernelGPUs(fstest.MapFS{})())
	require.NoError(t, c.Close())
}
