package nvidia

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// GPU A has the MIG devices M1 (instance 1, compute 0), M2 (2, 0) and M3 (2, 1).
func migNode(devices ...string) Node {
	all := map[string]MIGDevice{
		"M1": {UUID: "M1", GPU: "A", GPUInstance: 1},
		"M2": {UUID: "M2", GPU: "A", GPUInstance: 2},
		"M3": {UUID: "M3", GPU: "A", GPUInstance: 2, ComputeInstance: 1},
	}
	a := GPU{UUID: "A", MIGEnabled: true}
	for _, uuid := range devices {
		a.MIG = append(a.MIG, all[uuid])
	}
	return Node{GPUs: []GPU{a, {UUID: "B"}}}
}

func migSees(node Node) func(*tracker, time.Time) {
	return func(w *tracker, now time.Time) { w.seen(node, now) }
}

func migFault(node Node, uuid string) Node {
	err := check("MIG device 0 of GPU 0", "nvmlDeviceGetMemoryInfo", nvml.ERROR_UNKNOWN)
	node.Faults = []Fault{{UUID: uuid, GPU: "A", Err: err, Message: err.Error()}}
	return node
}

func strikes(gpu string, code uint, gi, ci uint32) func(*tracker, time.Time) {
	return func(w *tracker, now time.Time) { w.critical(xid{gpu, instance{gi, ci}, code}, now) }
}

func TestMIGHealth(t *testing.T) {
	const settle, all = 10 * time.Second, allInstances
	three := migSees(migNode("M1", "M2", "M3"))
	passes := func(w *tracker, now time.Time) { w.settled(now) }
	lost := Node{GPUs: []GPU{{UUID: "B"}}, Faults: []Fault{{UUID: "A", Err: nvml.ERROR_GPU_IS_LOST, Message: "lost"}}}
	type step struct {
		after  time.Duration
		report func(*tracker, time.Time)
		ill    map[string]string // and a part of why
		known  int               // how many have a health
	}
	none := map[string]string{}
	for _, tt := range []struct {
		description string
		steps       []step
	}{
		{"an XID of one instance is that instance's", []step{
			{0, three, none, 5},
			{0, strikes("A", 94, 1, 0), map[string]string{"M1": "XID 94: healthy after"}, 5},
			{settle, passes, none, 5},
			{0, strikes("A", 94, 2, 1), map[string]string{"M3": "XID 94"}, 5},
		}},
		{"of a GPU instance, all its compute instances'", []step{
			{0, three, none, 5},
			{0, strikes("A", 94, 2, all), map[string]string{"M2": "XID 94", "M3": "XID 94"}, 5},
		}},
		{"of the whole GPU, the GPU's, so all", []step{
			{0, three, none, 5},
			{0, strikes("A", 94, all, all), map[string]string{
				"A": "XID 94", "M1": "its GPU A: XID 94", "M2": "its GPU A", "M3": "its GPU A",
			}, 5},
			{settle, passes, none, 5},
		}},
		{"of an unknown instance: the GPU's", []step{
			{0, migSees(migNode("M1")), none, 3},
			{0, strikes("A", 94, 5, 0), map[string]string{"A": "XID 94", "M1": "its GPU A"}, 3},
		}},
		{"of no GPU, every GPU's", []step{
			{0, three, none, 5},
			{0, strikes("", 94, all, all), map[string]string{"A": "XID 94", "B": "XID 94", "M1": "its", "M2": "its", "M3": "its"}, 5},
		}},
		{"a program's XID is nothing", []step{
			{0, three, none, 5},
			{0, strikes("A", 13, 1, 0), none, 5},
		}},
		{"one that is taken away is forgotten, and may come back", []step{
			{0, three, none, 5},
			{0, migSees(migNode("M2")), none, 3},
			{0, three, none, 5},
		}},
		{"its GPU loses MIG altogether", []step{
			{0, three, none, 5},
			{0, sees("A", "B"), none, 2},
		}},
		{"what is ill and taken away is well when it is made again", []step{
			{0, three, none, 5},
			{0, strikes("A", 94, 1, 0), map[string]string{"M1": "XID 94"}, 5},
			{0, migSees(migNode("M2", "M3")), none, 4},
			{0, three, none, 5},
		}},
		{"but not what needs a reset of the GPU", []step{
			{0, three, none, 5},
			{0, strikes("A", 48, 1, 0), map[string]string{"M1": "XID 48, which needs a reset"}, 5},
			{0, migSees(migNode("M2", "M3")), map[string]string{"M1": "the GPU no longer has this MIG device"}, 5},
			{0, three, map[string]string{"M1": "XID 48, which needs a reset"}, 5},
			{time.Hour, three, map[string]string{"M1": "XID 48, which needs a reset"}, 5},
			{0, migSees(lost), map[string]string{"A": "lost", "M1": "lost", "M2": "lost", "M3": "lost"}, 5},
			{0, three, map[string]string{"A": "is back", "M1": "its GPU A", "M2": "its GPU A", "M3": "its GPU A"}, 5},
			{settle, passes, none, 5},
		}},
		{"a reset that its instances don't survive", []step{
			{0, three, none, 5},
			{0, strikes("A", 48, 1, 0), map[string]string{"M1": "XID 48"}, 5},
			{0, migSees(lost), map[string]string{"A": "lost", "M1": "lost", "M2": "lost", "M3": "lost"}, 5},
			{0, migSees(migNode()), map[string]string{"A": "is back"}, 2},
		}},
		{"one that can't be read", []step{
			{0, three, none, 5},
			{0, migSees(migFault(migNode("M1", "M3"), "M2")), map[string]string{"M2": "nvmlDeviceGetMemoryInfo"}, 5},
			{0, three, map[string]string{"M2": "is back"}, 5},
			{settle, passes, none, 5},
		}},
		{"one that never could be read", []step{
			{0, migSees(migFault(migNode("M1"), "M2")), map[string]string{"M2": "nvmlDeviceGetMemoryInfo"}, 4},
			{0, migSees(migNode("M1")), none, 3},
		}},
		{"one with an unreadable UUID", []step{
			{0, three, none, 5},
			{0, migSees(migFault(migNode("M1", "M3"), "")), map[string]string{"M2": "has some that can't be read"}, 5},
		}},
		{"nothing can be read", []step{
			{0, three, none, 5},
			{0, fails(assert.AnError), map[string]string{"A": "assert", "B": "assert", "M1": "its GPU A", "M2": "its", "M3": "its"}, 5},
		}},
	} {
		t.Run(tt.description, func(t *testing.T) {
			w := newTracker(settle, nil)
			now := time.Unix(1000, 0)
			for i, s := range tt.steps {
				now = now.Add(s.after)
				s.report(w, now)
				assert.Len(t, w.health, s.known, "step %d", i)
				for uuid, h := range w.health {
					why, ill := s.ill[uuid]
					assert.Equal(t, !ill, h.Healthy, "step %d: %s: %+v", i, uuid, h)
					assert.Contains(t, h.Reason, why, "step %d: %s", i, uuid)
				}
			}
		})
	}
}

// A cache follows MIG devices that come and go without opening NVML again, and finds the instance
// of an XID.
func TestCacheFollowsMIG(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventServer()
		places := []*mock.Device{migMock(0, 0, "1g.5gb", 4864), migMock(0, 1, "1g.5gb", 4864)}
		change := cutUp(s.device(0), places...)
		c := runCache(t, s, CacheOptions{Interval: 30 * time.Second, Settle: time.Minute})
		changed := c.Changed()
		ill := func() (uuids []string) {
			for uuid, h := range c.Snapshot().Health {
				if !h.Healthy {
					uuids = append(uuids, uuid)
				}
			}
			return uuids
		}
		require.Len(t, c.Node().GPUs[0].MIG, 2)
		require.Len(t, c.Snapshot().Health, 10)

		s.happens <- nvml.EventData{
			Device: s.Devices[0], EventType: nvml.EventTypeXidCriticalError, EventData: 94, GpuInstanceId: 8, ComputeInstanceId: 0,
		}
		<-changed
		require.Equal(t, []string{migUUIDOf(0, 1)}, ill())

		change(places[0])
		<-changed
		require.Empty(t, ill())
		require.Len(t, c.Node().GPUs[0].MIG, 1)
		_, known := c.Health(migUUIDOf(0, 1))
		require.False(t, known)

		change(places[0], nil, migMock(0, 2, "2g.10gb", 9984))
		<-changed
		require.Len(t, c.Node().GPUs[0].MIG, 2)
		h, _ := c.Health(migUUIDOf(0, 2))
		require.True(t, h.Healthy, "%+v", h)
		require.Len(t, s.InitCalls(), 1)
	})
}
