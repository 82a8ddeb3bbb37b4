package nvidia

import (
	"errors"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
)

// Each case is a sequence of reports, with the expected health of GPU A after each.
// B is the GPU beside it.
type healthStep struct {
	after   time.Duration // since the step before
	report  func(w *tracker, now time.Time)
	healthy bool
	reason  string // a part of it
	b       bool   // B is healthy
}

func sees(uuids ...string) func(*tracker, time.Time) {
	node := Node{}
	for _, uuid := range uuids {
		node.GPUs = append(node.GPUs, GPU{UUID: uuid})
	}
	return func(w *tracker, now time.Time) { w.seen(node, now) }
}

// seesFault is a node with B, and a GPU that can't be read.
func seesFault(uuid string, ret nvml.Return) func(*tracker, time.Time) {
	err := check("GPU 0", "nvmlDeviceGetMemoryInfo", ret)
	node := Node{GPUs: []GPU{{UUID: "B"}}, Faults: []Fault{{UUID: uuid, Err: err, Message: err.Error()}}}
	return func(w *tracker, now time.Time) { w.seen(node, now) }
}

func reports(uuid string, code uint) func(*tracker, time.Time) {
	return func(w *tracker, now time.Time) {
		w.critical(xid{uuid, instance{allInstances, allInstances}, code}, now)
	}
}

func fails(err error) func(*tracker, time.Time) {
	return func(w *tracker, now time.Time) { w.unreadable(err, now) }
}

func TestHealth(t *testing.T) {
	const settle = 10 * time.Second
	both, passes := sees("A", "B"), func(w *tracker, now time.Time) { w.settled(now) }
	for _, tt := range []struct {
		description string
		steps       []healthStep
	}{
		{"an XID settles", []healthStep{
			{0, both, true, "", true},
			{0, reports("A", 94), false, "XID 94: healthy after 10s", true},
			{9 * time.Second, both, false, "XID 94", true},
			{time.Second, passes, true, "", true},
		}},
		{"another XID begins the time again", []healthStep{
			{0, both, true, "", true},
			{0, reports("A", 94), false, "XID 94", true},
			{9 * time.Second, reports("A", 74), false, "XID 74", true},
			{9 * time.Second, passes, false, "XID 74", true},
			{time.Second, passes, true, "", true},
		}},
		{"an XID of no GPU is every GPU's", []healthStep{
			{0, both, true, "", true},
			{0, reports("", 94), false, "XID 94", false},
			{settle, passes, true, "", true},
		}},
		{"a program's XID, and one that is configured, are nothing", []healthStep{
			{0, both, true, "", true},
			{0, reports("A", 31), true, "", true},
			{0, reports("", 109), true, "", true},
			{0, reports("A", 63), true, "", true},
		}},
		{"an XID of an unknown GPU", []healthStep{
			{0, both, true, "", true},
			{0, reports("C", 94), true, "", true},
		}},
		{"a lost GPU that comes back settles", []healthStep{
			{0, both, true, "", true},
			{0, seesFault("A", nvml.ERROR_GPU_IS_LOST), false, "fell off the bus", true},
			{time.Hour, seesFault("A", nvml.ERROR_GPU_IS_LOST), false, "fell off the bus", true},
			{time.Second, both, false, "is back: healthy after 10s", true},
			{settle, passes, true, "", true},
		}},
		{"a GPU that is no longer listed", []healthStep{
			{0, both, true, "", true},
			{0, sees("B"), false, "no longer lists the GPU", true},
			{time.Hour, passes, false, "no longer lists the GPU", true},
			{0, both, false, "is back", true},
			{settle, both, true, "", true},
		}},
		{"one with an unreadable UUID", []healthStep{
			{0, both, true, "", true},
			{0, seesFault("", nvml.ERROR_GPU_IS_LOST), false, "but has some that can't be read: GPU 0", true},
		}},
		{"a GPU that never could be read", []healthStep{
			{0, seesFault("A", nvml.ERROR_UNKNOWN), false, "nvmlDeviceGetMemoryInfo", true},
			{0, both, false, "is back", true},
			{settle, both, true, "", true},
		}},
		{"an XID that needs a reset doesn't settle", []healthStep{
			{0, both, true, "", true},
			{0, reports("A", 48), false, "XID 48, which needs a reset", true},
			{time.Hour, both, false, "XID 48, which needs a reset", true},
			{0, reports("A", 94), false, "XID 48, which needs a reset", true},
			{time.Hour, both, false, "XID 48, which needs a reset", true},
		}},
		{"a failed reading is no reset", []healthStep{
			{0, both, true, "", true},
			{0, reports("A", 48), false, "XID 48", true},
			{0, seesFault("A", nvml.ERROR_UNKNOWN), false, "nvmlDeviceGetMemoryInfo", true},
			{0, fails(errors.New("nothing at all")), false, "nothing at all", false},
			{0, both, false, "XID 48, which needs a reset", false},
			{time.Hour, both, false, "XID 48, which needs a reset", true},
		}},
		{"a reset is seen by the GPU being away", []healthStep{
			{0, both, true, "", true},
			{0, reports("A", 79), false, "XID 79", true},
			{0, seesFault("", nvml.ERROR_GPU_IS_LOST), false, "but has some that can't be read", true},
			{0, sees("B"), false, "no longer lists", true},
			{0, both, false, "XID 79: healthy after 10s", true},
			{settle, both, true, "", true},
		}},
		{"a driver that was loaded again has reset its GPUs", []healthStep{
			{0, both, true, "", true},
			{0, reports("A", 119), false, "XID 119", true},
			{0, fails(check(theDriver, "nvmlInit", nvml.ERROR_DRIVER_NOT_LOADED)), false, "modprobe nvidia", false},
			{0, both, false, "healthy after", false},
			{settle, both, true, "", true},
		}},
		{"an XID while the GPU is away", []healthStep{
			{0, both, true, "", true},
			{0, sees("B"), false, "no longer lists", true},
			{0, reports("A", 79), false, "no longer lists", true},
			{time.Hour, passes, false, "no longer lists", true},
			{0, both, false, "XID 79: healthy after", true},
			{settle, both, true, "", true},
		}},
	} {
		t.Run(tt.description, func(t *testing.T) {
			w := newTracker(settle, []uint{63})
			now := time.Unix(1000, 0)
			since := now
			last := true
			for i, step := range tt.steps {
				now = now.Add(step.after)
				step.report(w, now)
				a := w.health["A"]
				if i > 0 && a.Healthy != last {
					since = now
				}
				last = a.Healthy
				assert.Equal(t, step.healthy, a.Healthy, "step %d: %+v", i, a)
				assert.Equal(t, step.healthy, a.Reason == "", "step %d: %+v", i, a)
				assert.Contains(t, a.Reason, step.reason, "step %d", i)
				assert.Equal(t, since, a.Since, "step %d", i)
				assert.Equal(t, step.b, w.health["B"].Healthy, "step %d: B", i)
			}
		})
	}
}
