package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

// machine is an engine and what is to be expected of it, by a model that is as plain as can
// be: lists of nodes and pods, and all counted again each time.
type machine struct {
	clock *clock
	e     *Engine
	nodes map[string][]scheduler.GPU
	pods  map[string]*modelPod
	next  int
}

type modelPod struct {
	pod       *scheduler.Pod
	placement *scheduler.Placement // nil: none
	bound     bool
	expiry    time.Time
}

const ttl = time.Minute

// shapes are of pods that small nodes are quickly full of.
var shapes = [][]string{{"1/3/0"}, {"1/3/30"}, {"2/2/50"}, {"1/-50/50"}, {"1/1/100"}, {"i1/5/0", "1/2/30"}, {"s1/1/10", "i2/2/0", "1/2/0", "1/2/20"}, {"0/0/0", "1/6/0"}}

func newMachine(t tester) *machine {
	m := &machine{clock: newClock(), nodes: map[string][]scheduler.GPU{}, pods: map[string]*modelPod{}}
	m.e = newEngine(t, Options{Clock: m.clock.Now, ReservationTTL: ttl, Signatures: 4})
	m.e.SetQuota("small", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 12, Cores: quota.Unlimited}})
	return m
}

func (m *machine) name(t *rapid.T) string { return nodeName(rapid.IntRange(0, 4).Draw(t, "node")) }

// some is one of the pods that the model has, or nil.
func (m *machine) some(t *rapid.T, which func(*modelPod) bool) *modelPod {
	var all []string
	for uid, p := range m.pods {
		if which(p) {
			all = append(all, uid)
		}
	}
	if len(all) == 0 {
		t.Skip("no such pod")
	}
	slices.Sort(all)
	return m.pods[rapid.SampledFrom(all).Draw(t, "pod")]
}

func held4(p *modelPod) bool     { return p.placement != nil }
func waiting(p *modelPod) bool   { return !p.bound }
func reserving(p *modelPod) bool { return p.placement != nil && !p.bound }

func (m *machine) expire() {
	for _, p := range m.pods {
		if reserving(p) && !m.clock.Now().Before(p.expiry) {
			p.placement = nil
		}
	}
}

// used counts a node's GPUs by the model.
func (m *machine) used(node string) []scheduler.Use {
	all := make([]scheduler.Use, len(m.nodes[node]))
	for _, p := range m.pods {
		if p.placement == nil || p.placement.Node != node {
			continue
		}
		uses := scheduler.Uses(p.pod.Containers, p.placement.Containers)
		for i, c := range m.nodes[node] {
			all[i] = all[i].Add(uses[c.UUID])
		}
	}
	return all
}

func (m *machine) setNode(t *rapid.T) {
	name := m.name(t)
	var gpus []scheduler.GPU
	for i := range 3 {
		if rapid.Bool().Draw(t, "there") {
			c := drawGPU(t, int(name[len(name)-1]-'0'), i)
			c.Healthy = rapid.IntRange(0, 5).Draw(t, "health") > 0
			gpus = append(gpus, c)
		}
	}
	m.nodes[name] = gpus
	m.e.SetNode(nodeOf(name, gpus...))
}

func (m *machine) deleteNode(t *rapid.T) {
	name := m.name(t)
	delete(m.nodes, name)
	m.e.DeleteNode(name)
}

func (m *machine) create(t *rapid.T) {
	m.next++
	p := podOf(fmt.Sprintf("uid-%d", m.next), rapid.SampledFrom(shapes).Draw(t, "shape")...)
	p.Namespace = rapid.SampledFrom([]string{"ns", "small"}).Draw(t, "namespace")
	m.pods[p.UID] = &modelPod{pod: p}
	m.e.SetPod(p)
}

// reserve checks all that a reservation promises: it is what the pod requested, there was
// GPUs, and it is refused only where Evaluate sees none.
func (m *machine) reserve(t *rapid.T) {
	p := m.some(t, waiting)
	node := m.name(t)
	r := requestOf(t, m.e, p.pod)
	verdict := m.e.Evaluate(m.e.Snapshot(), p.pod, r).Verdict(node)
	was := p.placement
	placement, err := m.e.Reserve(p.pod, r, node, "test")
	p.placement = nil
	again := was != nil && was.Node == node && err == nil && samePlacement(*was, placement)
	if err != nil {
		if verdict.Fits {
			t.Fatalf("Evaluate reports that it fits, but Reserve: %v", err)
		}
		p.placement = was // a refusal changes nothing
		return
	}
	if !verdict.Fits && !again {
		t.Fatalf("Reserve returns %v, but Evaluate %s", placement, verdict.Text())
	}
	if !again {
		checkPlacement(t, p.pod, r, m.nodes[node], m.used(node), placement)
	}
	p.placement, p.expiry = &placement, m.clock.Now().Add(ttl)
}

func (m *machine) unreserve(t *rapid.T) {
	p := m.some(t, waiting)
	m.e.Unreserve(p.pod.UID, "test")
	p.placement = nil
}

// touched is any event of a pod that waits: it keeps what it has, and takes no more.
func (m *machine) touched(t *rapid.T) {
	p := m.some(t, waiting)
	before := m.dump()
	m.e.SetPod(m.other(t, p))
	if after := m.dump(); after != before {
		t.Fatalf("before an event of a waiting pod\n%s\nand after\n%s", before, after)
	}
}

// edited is a bound pod with changed annotations.
func (m *machine) edited(t *rapid.T) {
	p := m.some(t, func(p *modelPod) bool { return p.bound && p.placement != nil })
	before := m.dump()
	m.e.SetPod(bindTo(m.other(t, p), rapid.SampledFrom([]string{"", p.pod.Node}).Draw(t, "on")))
	if after := m.dump(); after != before {
		t.Fatalf("before an event of a bound pod\n%s\nand after\n%s", before, after)
	}
}

// other is the pod with labels and annotations as they may be.
func (m *machine) other(t *rapid.T, p *modelPod) *scheduler.Pod {
	next := *labelled(p.pod)
	shares := [][]grant.Share{{{UUID: uuid(rapid.IntRange(0, 4).Draw(t, "of"), 0), MemoryMiB: 3}}}
	switch rapid.IntRange(0, 4).Draw(t, "annotations") {
	case 0:
		next.Annotations = nil
	case 1:
		next = *annotated(&next, map[string]string{api.AnnotationGrant: "{"})
	case 2:
		next = *given(t, &next, scheduler.Placement{Node: m.name(t), Containers: shares})
	case 3:
		if p.placement != nil {
			next = *given(t, &next, *p.placement)
		}
	}
	return &next
}

func (m *machine) bind(t *rapid.T) {
	p := m.some(t, reserving)
	p.pod, p.bound = bindTo(given(t, p.pod, *p.placement), p.placement.Node), true
	m.e.SetPod(p.pod)
}

// again is an event that changes nothing.
func (m *machine) again(t *rapid.T) {
	p := m.some(t, func(p *modelPod) bool { return p.bound || p.placement == nil })
	m.e.SetPod(p.pod)
}

func (m *machine) end(t *rapid.T) {
	p := m.some(t, held4)
	ended := *p.pod
	ended.Ended = true
	m.e.SetPod(&ended)
	p.placement = nil
	delete(m.pods, p.pod.UID)
}

func (m *machine) delete(t *rapid.T) {
	p := m.some(t, func(*modelPod) bool { return true })
	m.e.DeletePod(p.pod.UID)
	delete(m.pods, p.pod.UID)
}

func (m *machine) wait(t *rapid.T) {
	m.clock.add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
	m.e.Snapshot()
	m.expire()
}

// roundTrip is Reserve and Unreserve, and nothing is different.
func (m *machine) roundTrip(t *rapid.T) {
	p := m.some(t, func(p *modelPod) bool { return p.placement == nil && !p.bound })
	before := m.dump()
	if _, err := m.e.Reserve(p.pod, requestOf(t, m.e, p.pod), m.name(t), "test"); err != nil {
		t.Skip("does not fit")
	}
	if after := m.dump(); after == before {
		t.Fatalf("reserved, and nothing has changed")
	}
	m.e.Unreserve(p.pod.UID, "test")
	if after := m.dump(); after != before {
		t.Fatalf("before\n%s\nReserve and Unreserve, and after\n%s", before, after)
	}
}

// dump is all that decisions go by.
func (m *machine) dump() string { return dump(m.e) }

func dump(e *Engine) string {
	text := ""
	for _, n := range e.State("").Nodes {
		text += fmt.Sprintf("%s %v %v\n", n.Name, n.Registered, n.GPUs)
		for _, p := range n.Pods {
			text += fmt.Sprintf("  %s %s %v\n", p.UID, p.Pod, p.Containers)
		}
	}
	for _, namespace := range []string{"ns", "small"} {
		text += fmt.Sprintf("%s %v\n", namespace, e.quotas.Account(namespace).Used)
	}
	return text
}

// check compares the engine with the model, with one that is made again, and its cache with none.
func (m *machine) check(t *rapid.T) {
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		if got, want := m.e.Snapshot().node(name).used, m.used(name); !slices.Equal(got, want) {
			t.Fatalf("%s: %v is taken, and by the model %v", name, got, want)
		}
	}
	m.checkCounts(t)
	m.checkRebuilt(t)
	m.checkCache(t)
}

// checkCounts compares the counters with the model.
func (m *machine) checkCounts(t *rapid.T) {
	stats, state := m.e.Stats(), m.e.State("")
	var nodes, gpus, pods, reserved int
	for _, n := range m.nodes {
		nodes++
		gpus += len(n)
	}
	for _, p := range m.pods {
		if p.placement != nil {
			pods++
		}
		if reserving(p) {
			reserved++
		}
	}
	if got, want := []int{stats.Nodes, stats.GPUs, stats.Pods, stats.Reservations, stats.Problems},
		[]int{nodes, gpus, pods, reserved, len(state.Problems)}; !slices.Equal(got, want) {
		t.Fatalf("%v, and by the model %v", got, want)
	}
	if len(m.e.pods) > len(m.pods) {
		t.Fatalf("%d pods, and %d are known", len(m.pods), len(m.e.pods))
	}
}

// checkRebuilt makes the state from annotations only, in any order, as if all that is
// reserved were bound.
func (m *machine) checkRebuilt(t *rapid.T) {
	rebuilt := newEngine(t, Options{Clock: m.clock.Now, ReservationTTL: ttl})
	var events []func()
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		gpus := m.nodes[name]
		events = append(events, func() { rebuilt.SetNode(nodeOf(name, gpus...)) })
	}
	for _, uid := range slices.Sorted(maps.Keys(m.pods)) {
		p := m.pods[uid]
		pod := p.pod
		if p.placement != nil {
			pod = bindTo(given(t, pod, *p.placement), p.placement.Node)
		}
		events = append(events, func() { rebuilt.SetPod(pod) })
	}
	random := rand.New(rand.NewPCG(uint64(m.next), uint64(len(events))))
	random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	for _, event := range events {
		event()
	}
	if got, want := dump(rebuilt), m.dump(); got != want {
		t.Fatalf("by annotations\n%s\nand kept\n%s", got, want)
	}
}

func (m *machine) checkCache(t *rapid.T) {
	s := m.e.Snapshot()
	for i, shape := range shapes {
		p := podOf("other", shape...)
		p.Namespace = []string{"ns", "small"}[i%2]
		r := requestOf(t, m.e, p)
		cached := m.e.Evaluate(s, p, r)
		m.e.mu.Lock()
		verdicts := m.e.verdicts
		m.e.verdicts = newCache(1)
		m.e.mu.Unlock()
		fresh := m.e.Evaluate(s, p, r)
		m.e.verdicts = verdicts
		for k := range 5 {
			a, b := cached.Verdict(nodeName(k)), fresh.Verdict(nodeName(k))
			f := fresh.compiled.fitter()
			if n := s.node(nodeName(k)); n != nil && len(n.gpus.total) > 0 && fresh.outcomes.chunks[0].outcomes[fresh.row(nodeName(k))] != f.fit(n) {
				t.Fatalf("%v on %s: fast path %v, with GPUs %v", shape, nodeName(k), fresh.outcomes.chunks[0].outcomes[fresh.row(nodeName(k))], f.fit(n))
			}
			f.release()
			if a.Fits != b.Fits || a.Score != b.Score || *a.outcome != *b.outcome || a.Text() != b.Text() {
				t.Fatalf("%v on %s: cached %q, evaluated again %q", shape, nodeName(k), a.Text(), b.Text())
			}
			if a.Score < 0 || a.Score > 10000 {
				t.Fatalf("score %d", a.Score)
			}
		}
	}
}

func (v *Evaluation) row(name string) int {
	row, _ := v.snapshot.rows.get(name)
	return row
}

// TestAnySequence is of all events and calls, in any order.
func TestAnySequence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		for range 3 {
			m.setNode(t)
		}
		t.Repeat(map[string]func(*rapid.T){
			"":         m.check,
			"set node": m.setNode, "delete node": m.deleteNode, "create": m.create, "create more": m.create,
			"reserve": m.reserve, "reserve more": m.reserve, "unreserve": m.unreserve, "touched": m.touched, "edited": m.edited, "bind": m.bind,
			"again": m.again, "end": m.end, "delete": m.delete, "wait": m.wait, "round trip": m.roundTrip,
		})
	})
}

// TestNothingIsOvercommitted has a cluster with unchanging GPUs: nothing is ever
// taken twice, of GPUs or of quotas.
func TestNothingIsOvercommitted(t *testing.T) {
	full := 0
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		for i := range 3 {
			name := nodeName(i)
			for k := range rapid.IntRange(1, 3).Draw(t, "gpus") {
				m.nodes[name] = append(m.nodes[name], drawGPU(t, i, k))
			}
			m.e.SetNode(nodeOf(name, m.nodes[name]...))
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				for name, gpus := range m.nodes {
					for i, u := range m.e.Snapshot().node(name).used {
						c := gpus[i]
						if u.MemoryMiB > c.MemoryMiB || u.Cores > c.Cores || u.Replicas > c.Replicas || u.MemoryMiB < 0 || u.Cores < 0 || u.Replicas < 0 {
							t.Fatalf("%s: GPU %v and %v is taken", name, c, u)
						}
						if u.MemoryMiB == c.MemoryMiB || u.Replicas == c.Replicas {
							full++
						}
					}
				}
				if used := m.e.quotas.Account("small").Used.MemoryMiB; used > 12 {
					t.Fatalf("the quota is 12 MiB, and %d are used", used)
				}
			},
			"create": m.create, "create more": m.create, "reserve": m.reserve, "reserve more": m.reserve, "unreserve": m.unreserve,
			"touched": m.touched, "edited": m.edited, "bind": m.bind, "end": m.end, "delete": m.delete, "wait": m.wait,
		})
	})
	require.NotZero(t, full, "no GPU was ever full")
}
