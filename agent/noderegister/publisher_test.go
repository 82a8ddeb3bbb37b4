package noderegister

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
)

// play is a publisher at work on a server.
type play struct {
	t       *testing.T
	server  *apiServer
	changed chan struct{}
	log     *bytes.Buffer
	*Publisher
	stop func()

	mu    sync.Mutex
	node  Node
	known bool
}

// set changes the wanted state.
func (p *play) set(n Node, known bool) {
	p.mu.Lock()
	p.node, p.known = n, known
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// errors are how many errors were logged.
func (p *play) errors() int { return strings.Count(p.log.String(), "level=ERROR") }

// after waits, in played time, for what happens until then.
func (p *play) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// run plays a test in its own time, in which the publisher has had its first look.
func run(t *testing.T, options Options, prepare func(*apiServer), test func(*play)) {
	t.Helper()
	runWith(t, options, nil, prepare, test)
}

func runWith(t *testing.T, options Options, conditions func() []Condition, prepare func(*apiServer), test func(*play)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &play{t: t, server: newAPIServer(t), changed: make(chan struct{}, 1), log: &bytes.Buffer{}, node: example(), known: true}
		if prepare != nil {
			prepare(p.server)
		}
		var err error
		p.Publisher, err = New(Config{
			Client: p.server.client(), NodeName: nodeName, Options: options, Changed: p.changed,
			Log: slog.New(slog.NewTextHandler(p.log, nil)), Conditions: conditions,
			Node: func() (Node, bool) {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.node, p.known
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.Run(ctx) }()
		p.stop = func() { cancel(); <-done }
		defer p.stop()
		synctest.Wait()
		test(p)
	})
}

func TestWritesOnlyChanges(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		want := Render(example(), Options{})
		assert.Subset(t, p.server.now().Annotations, want.Annotations)
		assert.Subset(t, p.server.now().Labels, want.Labels)
		assert.Equal(t, 1, p.server.count("patch"))

		p.after(10 * time.Minute)
		assert.Equal(t, 1, p.server.count("patch"), "nothing changed, nothing is written")
		assert.GreaterOrEqual(t, p.server.count("get"), 20, "a look each half-minute")
		assert.LessOrEqual(t, p.server.count("get"), 25)
	})
}

func TestChangeIsWrittenAtOnce(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		n := example()
		n.Devices[0].Healthy = false
		p.set(n, true)
		p.after(time.Second)
		assert.Equal(t, Render(n, Options{}).Annotations[api.AnnotationHAMiRegister], p.server.now().Annotations[api.AnnotationHAMiRegister])

		p.server.mu.Lock()
		last := p.server.calls[len(p.server.calls)-1]
		p.server.mu.Unlock()
		assert.NotContains(t, last.body, "labels", "only what differs is sent")
		assert.NotContains(t, last.body, api.AnnotationHAMiScore)
	})
}

// HAMi's scheduler locks the node for each pod, and places no other pod there until HAMi's device plugin, or the agent in its
// place, has released the lock. A node that takes no grants of HAMi's leaves the lock to the programs that do.
func TestHAMisLockIsReleased(t *testing.T) {
	const lock = "2026-11-29T04:00:00Z,team-a,train"
	run(t, Options{HAMiGrants: true}, nil, func(p *play) {
		for range 2 {
			p.server.annotate(api.AnnotationHAMiLock, lock)
			p.set(example(), true) // as after an Allocate
			p.after(time.Second)
			assert.NotContains(t, p.server.now().Annotations, api.AnnotationHAMiLock)
		}
		p.server.annotate(api.AnnotationHAMiLock, lock)
		p.after(33 * time.Second)
		assert.NotContains(t, p.server.now().Annotations, api.AnnotationHAMiLock, "also without a notice")
		p.server.annotate(api.AnnotationHAMiLock, lock)
		p.stop()
		assert.NotContains(t, p.server.now().Annotations, api.AnnotationHAMiLock, "no other program releases it")
	})
	run(t, Options{}, nil, func(p *play) {
		p.server.annotate(api.AnnotationHAMiLock, lock)
		p.after(time.Hour)
		assert.Equal(t, lock, p.server.now().Annotations[api.AnnotationHAMiLock])
	})
}

func TestChangeWhileTheServerIsDownIsWrittenWhenItIsBack(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		p.server.setDown(true)
		n := example()
		n.Devices = n.Devices[:1]
		p.set(n, true)
		p.after(time.Hour)
		assert.Equal(t, 1, p.errors(), p.log)

		p.server.setDown(false)
		p.after(30 * time.Second)
		assert.Equal(t, Render(n, Options{}).Annotations[api.AnnotationHAMiRegister], p.server.now().Annotations[api.AnnotationHAMiRegister])
		assert.Contains(t, p.log.String(), "again")
	})
}

// HAMi's device plugin takes devices down as written before it writes them.
func TestChangeIsNotLostWithThePatchThatFailed(t *testing.T) {
	fail := func(s *apiServer) { s.fail("patch", metav1.StatusReasonInternalError) }
	run(t, Options{}, fail, func(p *play) {
		assert.Empty(t, p.server.now().Annotations[api.AnnotationHAMiRegister])
		p.server.fail("patch", "")
		p.after(5 * time.Second)
		assert.NotEmpty(t, p.server.now().Annotations[api.AnnotationHAMiRegister])
	})
}

func TestRetriesGetRarer(t *testing.T) {
	down := func(s *apiServer) { s.fail("get", metav1.StatusReasonInternalError) }
	run(t, Options{}, down, func(p *play) {
		p.after(5 * time.Second)
		assert.Equal(t, 2, p.server.count("get"))
		p.after(10 * time.Second)
		assert.Equal(t, 3, p.server.count("get"))
		before := p.server.count("get")
		p.after(10 * time.Minute)
		assert.LessOrEqual(t, p.server.count("get")-before, 25)
	})
}

func TestWhatOthersBreakIsRepaired(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		want := p.server.now()
		p.server.label("kubectl", api.LabelPrefix+"model", "Teapot")
		p.server.remove(api.LabelPrefix+"count", api.AnnotationHAMiScore)
		p.after(30 * time.Second)
		assert.Equal(t, want, p.server.now())

		p.server.annotate(api.AnnotationHAMiRegister, "[]")
		p.after(30 * time.Second)
		assert.Equal(t, want, p.server.now())
	})
}

func TestOnlyOurOwnIsRemoved(t *testing.T) {
	before := func(s *apiServer) {
		s.label(FieldManager, api.LabelPrefix+"of-old", "1")        // of an older version of us
		s.label(FieldManager, api.LabelTencentModel, "M40")         // no longer on request
		s.label("kubectl", api.LabelPrefix+"rack", "3")             // an administrator's
		s.label("kubectl", "nvidia.com/gpu.product", "NVIDIA-H200") // another's
		s.annotate("hami.io/mutex.lock", "x")
	}
	run(t, Options{}, before, func(p *play) {
		now := p.server.now()
		assert.NotContains(t, now.Labels, api.LabelPrefix+"of-old")
		assert.NotContains(t, now.Labels, api.LabelTencentModel)
		assert.Equal(t, "3", now.Labels[api.LabelPrefix+"rack"])
		assert.Equal(t, "NVIDIA-H200", now.Labels["nvidia.com/gpu.product"])
		assert.Equal(t, "gpu-7", now.Labels["kubernetes.io/hostname"])
		assert.Equal(t, "x", now.Annotations["hami.io/mutex.lock"])
		assert.Equal(t, "0", now.Annotations["node.alpha.kubernetes.io/ttl"])
	})
}

// Another writer that takes over gpu-manager's label keeps it.
func TestWhatOthersHaveWrittenSinceIsTheirs(t *testing.T) {
	before := func(s *apiServer) {
		s.label(FieldManager, api.LabelTencentModel, "M40")
		s.label("gpu-manager", api.LabelTencentModel, "P40")
	}
	run(t, Options{}, before, func(p *play) {
		assert.Equal(t, "P40", p.server.now().Labels[api.LabelTencentModel])
	})
}

func TestUnknownGPUsAreNotWritten(t *testing.T) {
	run(t, Options{}, func(s *apiServer) { s.label("kubectl", "pool", "a") }, func(p *play) {
		before := p.server.now()
		p.set(Node{}, false)
		p.after(time.Minute)
		assert.Equal(t, before, p.server.now())

		n := example()
		n.Devices[1].Replicas = 3
		p.set(n, true)
		p.after(time.Second)
		assert.Contains(t, p.server.now().Annotations[api.AnnotationHAMiRegister], `"count":3`)
	})
}

func TestHandshakeIsAnsweredWhenAsked(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		assert.NotContains(t, p.server.now().Annotations, api.AnnotationHAMiHandshake, "no request")
		for _, question := range []string{"Requesting_2026-11-21 10:00:00", "Requesting_2026.11.21 10:00:00", "Deleted_2026-11-21 10:00:00"} {
			p.server.annotate(api.AnnotationHAMiHandshake, question)
			p.after(30 * time.Second)
			answer := p.server.now().Annotations[api.AnnotationHAMiHandshake]
			stamp, ok := strings.CutPrefix(answer, "Reported_")
			require.True(t, ok, answer)
			_, err := time.Parse(time.DateTime, stamp)
			require.NoError(t, err)
		}
		writes := p.server.count("patch")
		p.after(5 * time.Minute)
		assert.Equal(t, writes, p.server.count("patch"), "an answer is given once")
	})
}

// Volcano ignores a node until it has an answer; it then asks at each of its cycles, and drops a node 60 s after a question.
func TestVolcano(t *testing.T) {
	run(t, Options{Volcano: true, IgnoreHandshake: true}, nil, func(p *play) {
		now := func(key string) string { return p.server.now().Annotations[key] }
		p.after(time.Second)
		require.Regexp(t, "^Reported_", now(api.AnnotationVolcanoHandshake))
		require.Regexp(t, "^GPU-a,", now(api.AnnotationVolcanoRegister))
		for _, question := range []string{"Requesting_2026.11.21 10:00:00", "Deleted_2026.11.21 10:00:00"} {
			p.server.annotate(api.AnnotationVolcanoHandshake, question)
			p.server.annotate(api.AnnotationHAMiHandshake, question)
			p.after(30 * time.Second)
			require.Regexp(t, "^Reported_", now(api.AnnotationVolcanoHandshake))
			require.Equal(t, question, now(api.AnnotationHAMiHandshake), "ignored")
		}
		n := example()
		for i := range n.Devices {
			n.Devices[i].Healthy = false
		}
		p.set(n, true)
		p.after(time.Second)
		require.Regexp(t, "^GPU-a,0,[0-9]+,NVIDIA[^,]*,false,hami-core:", now(api.AnnotationVolcanoRegister))
		p.stop()
		require.Equal(t, overdue, now(api.AnnotationVolcanoHandshake))
	})
	run(t, Options{}, nil, func(p *play) {
		p.after(time.Second)
		for key := range p.server.now().Annotations {
			require.NotContains(t, key, "volcano.sh")
		}
	})
}

func TestLeaving(t *testing.T) {
	asked := func(s *apiServer) { s.annotate(api.AnnotationHAMiHandshake, "Requesting_2026-11-21 10:00:00") }
	run(t, Options{}, asked, func(p *play) {
		n := example()
		n.Refused = []api.RefusedPod{{UID: "u", Container: "main", Reason: "no room"}}
		p.set(n, true)
		p.after(30 * time.Second)
		require.Contains(t, p.server.now().Annotations, api.AnnotationNodeRefused)
		labels := p.server.now().Labels
		p.stop()
		now := p.server.now()
		assert.NotContains(t, now.Annotations[api.AnnotationHAMiRegister], "health")
		assert.Contains(t, now.Annotations[api.AnnotationHAMiRegister], "GPU-a")
		assert.NotContains(t, now.Annotations, api.AnnotationNodeGPUs, "it would go before what another one registers")
		assert.NotContains(t, now.Annotations, api.AnnotationNodeRefused, "nothing would end it")
		assert.Equal(t, overdue, now.Annotations[api.AnnotationHAMiHandshake])
		assert.Equal(t, labels, now.Labels, "the GPUs are still what they are")
		assert.True(t, n.Devices[0].Healthy, "the caller's value is unchanged")
	})
}

func TestLeavingWithoutAServerIsShort(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		p.server.setDown(true)
		start := time.Now()
		p.stop()
		assert.LessOrEqual(t, time.Since(start), farewell)
		assert.Contains(t, p.log.String(), "level=WARN")
	})
}

func TestLeavingWithoutDevicesLogsNothing(t *testing.T) {
	down := func(s *apiServer) { s.setDown(true) }
	run(t, Options{}, down, func(p *play) {
		p.server.setDown(false)
		p.stop()
		assert.Zero(t, p.server.count("patch"))
	})
}

func TestEachKindOfFailureIsLoggedOnce(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		for i, kind := range []struct {
			reason metav1.StatusReason
			hint   string
		}{
			{metav1.StatusReasonUnauthorized, "credentials"},
			{metav1.StatusReasonForbidden, "install/agent-rbac.yaml"},
			{metav1.StatusReasonConflict, "retrying"},
			{metav1.StatusReasonInternalError, "retrying"},
		} {
			p.server.fail("get", kind.reason)
			p.after(10 * time.Minute)
			assert.Equal(t, i+1, p.errors(), p.log)
			assert.Contains(t, p.log.String(), kind.hint)
		}
		p.server.fail("get", metav1.StatusReasonForbidden)
		p.after(10 * time.Minute)
		assert.Equal(t, 4, p.errors(), "known")
	})
}

func TestNodeThatComesLater(t *testing.T) {
	run(t, Options{}, func(s *apiServer) { s.node.Name = "another" }, func(p *play) {
		assert.Contains(t, p.log.String(), "kubectl get nodes")
		p.server.mu.Lock()
		p.server.node.Name = nodeName
		p.server.mu.Unlock()
		p.after(30 * time.Second)
		assert.NotEmpty(t, p.server.now().Annotations[api.AnnotationHAMiRegister])
	})
}

func TestBadNodeName(t *testing.T) {
	for _, name := range []string{"", "GPU_7", "a/b", "gpu-7 ", strings.Repeat("a", 254)} {
		_, err := New(Config{NodeName: name})
		require.ErrorContains(t, err, "node name", "%q", name)
	}
}

func TestLabelsForOthers(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		assert.Equal(t, "2", p.Labels()[api.LabelPrefix+"count"], "what we wrote ourselves is seen")
		p.server.label("kubectl", "pool", "infer")
		p.after(30 * time.Second)
		assert.Equal(t, "infer", p.Labels()["pool"])

		p.server.setDown(true)
		p.after(time.Minute)
		assert.Equal(t, "infer", p.Labels()["pool"], "the last that were seen")
	})
}

func TestLabelsBeforeTheFirstLook(t *testing.T) {
	run(t, Options{}, func(s *apiServer) { s.setDown(true) }, func(p *play) {
		assert.Nil(t, p.Labels())
	})
}

// What the agent has written goes; what an operator or HAMi has written, or has changed since, stays.
func TestRemove(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		before := p.server.now()
		require.Contains(t, before.Annotations, api.AnnotationNodeGPUs)
		require.Contains(t, before.Labels, api.LabelPrefix+"count")
		p.server.annotate("hami.io/device-cordon", "GPU-1")
		p.stop()
		removed, err := Remove(context.Background(), p.server.client(), nodeName)
		require.NoError(t, err)
		require.Positive(t, removed)
		after := p.server.now()
		require.NotContains(t, after.Annotations, api.AnnotationNodeGPUs)
		require.NotContains(t, after.Annotations, api.AnnotationHAMiRegister)
		require.NotContains(t, after.Labels, api.LabelPrefix+"count")
		require.Equal(t, "GPU-1", after.Annotations["hami.io/device-cordon"])

		again, err := Remove(context.Background(), p.server.client(), nodeName)
		require.NoError(t, err)
		require.Zero(t, again)
	})
}

func TestRemoveWithoutServer(t *testing.T) {
	run(t, Options{}, nil, func(p *play) {
		p.server.setDown(true)
		_, err := Remove(context.Background(), p.server.client(), nodeName)
		require.ErrorContains(t, err, "read the node")
	})
}

// A refused capacity stops nothing else of the node's registration, and is reported and tried again.
func TestRefusedCapacity(t *testing.T) {
	run(t, Options{Capacity: Capacity{Memory: "nvidia.com/gpumem"}}, func(s *apiServer) {
		s.refuse["patch nodes/status"] = metav1.StatusReasonForbidden
	}, func(p *play) {
		require.NotEmpty(t, p.server.now().Annotations[api.AnnotationHAMiRegister])
		require.Contains(t, p.log.String(), "write the node's capacity")
		n := example()
		n.Devices[0].Healthy = false
		before := p.server.now().Annotations[api.AnnotationHAMiRegister]
		p.set(n, true)
		p.after(10 * time.Minute)
		require.NotEqual(t, before, p.server.now().Annotations[api.AnnotationHAMiRegister])
		require.Equal(t, 1, p.errors(), p.log)
		p.server.fail("patch nodes/status", "")
		p.after(10 * time.Minute)
		require.Len(t, p.server.capacity, 1)
	})
}

// Autoscalers add extended resources up: the node's capacity has the sums of the GPUs.
func TestCapacityForAutoscalers(t *testing.T) {
	capacity, err := ParseCapacity([]string{"memory=nvidia.com/gpumem", "memory-percentage=nvidia.com/gpumem-percentage", "cores=nvidia.com/gpucores"})
	require.NoError(t, err)
	run(t, Options{Capacity: capacity}, nil, func(p *play) {
		written := func() []string {
			p.server.mu.Lock()
			defer p.server.mu.Unlock()
			return p.server.capacity
		}
		n := example()
		require.Len(t, n.Devices, 2)
		memory := n.Devices[0].MemoryMiB + n.Devices[1].MemoryMiB
		first := fmt.Sprintf(`{"status":{"capacity":{"nvidia.com/gpucores":"%d","nvidia.com/gpumem":"%d","nvidia.com/gpumem-percentage":"200"}}}`,
			n.Devices[0].CorePercent+n.Devices[1].CorePercent, memory)
		require.Equal(t, []string{first}, written())
		p.after(10 * time.Minute)
		require.Len(t, written(), 1, "nothing changed, nothing is written")

		n.Devices[0].Healthy = false
		p.set(n, true)
		p.after(time.Minute)
		require.Len(t, written(), 1, "an unhealthy GPU counts: the kubelet would reject the pods that it runs")
		n.Devices[0].MemoryMiB += 5
		p.set(n, true)
		p.after(time.Minute)
		require.Contains(t, written()[1], fmt.Sprintf(`"nvidia.com/gpumem":"%d"`, memory+5))

		p.server.mu.Lock()
		p.server.node.UID = "u-2"
		p.server.mu.Unlock()
		p.after(time.Minute)
		require.Len(t, written(), 3, "a node that is created again has no capacity of ours")

		p.stop()
		require.NoError(t, RemoveCapacity(context.Background(), p.server.client(), nodeName, capacity))
		require.Equal(t, `{"status":{"capacity":{"nvidia.com/gpucores":null,"nvidia.com/gpumem":null,"nvidia.com/gpumem-percentage":null}}}`, written()[3])
	})
	run(t, Options{}, nil, func(p *play) {
		p.after(time.Minute)
		require.Empty(t, p.server.capacity, "off by default")
	})
	for _, bad := range []string{"memory", "memory=gpumem", "memory=a/b/c", "size=nvidia.com/gpumem", "cores=nvidia.com/gpu cores"} {
		_, err := ParseCapacity([]string{bad})
		require.ErrorContains(t, err, "must be memory=NAME", bad)
	}
}
