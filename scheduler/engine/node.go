package engine

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// gpus is an inventory prepared for fitting. Immutable.
type gpus struct {
	inventory scheduler.Inventory
	models    []string // in lower case
	total     []scheduler.Use
	numa      []int
	usable    []Code         // for a request without rules
	position  map[string]int // by UUID
	mixed     bool           // memory sizes differ
	others    []scheduler.Use
	kind      unique.Handle[string] // all of the inventory but UUIDs, and what others have
}

func newGPUs(inv scheduler.Inventory) *gpus {
	c := &gpus{inventory: inv, position: make(map[string]int, len(inv.GPUs))}
	for i, gpu := range inv.GPUs {
		c.models = append(c.models, strings.ToLower(gpu.Model))
		c.total = append(c.total, scheduler.Use{MemoryMiB: gpu.MemoryMiB, Cores: gpu.Cores, Replicas: gpu.Replicas})
		c.others = append(c.others, gpu.Others)
		c.numa = append(c.numa, gpu.NUMA)
		c.usable = append(c.usable, usable(&gpu, true, &request.Rules{}))
		c.position[gpu.UUID] = i
		c.mixed = c.mixed || gpu.MemoryMiB != inv.GPUs[0].MemoryMiB
	}
	plain := slices.Clone(inv.GPUs)
	for i := range plain {
		plain[i].UUID, plain[i].Others = "", scheduler.Use{}
	}
	c.kind = unique.Make(fmt.Sprintf("%#v", scheduler.Inventory{GPUs: plain, Links: inv.Links, HAMi: inv.HAMi}))
	return c
}

func (c *gpus) same(inv scheduler.Inventory) bool {
	return c.inventory.HAMi == inv.HAMi && slices.Equal(c.inventory.GPUs, inv.GPUs) && reflect.DeepEqual(c.inventory.Links, inv.Links)
}

var noGPUs = newGPUs(scheduler.Inventory{})

// node is immutable after publication.
type node struct {
	name string
	// version is unique to this state of the node.
	version uint64
	// registered: the node exists, not only pods on it.
	registered bool
	labels     map[string]string
	problem    string // why its GPUs can't be read
	gpus       *gpus
	used       []scheduler.Use // by GPU position, with what no scheduler placed
	pods       []*allocation   // sorted by UID
}

// allocation is what a pod has on a node. Immutable.
type allocation struct {
	uid, namespace, name string
	placement            scheduler.Placement
	kinds                []scheduler.Kind // of the pod's containers
	class                scheduler.Class
	priority             int32
	created              time.Time
	group                string
	byUUID               []gpuUse      // kept while the node's GPUs are unknown
	byPosition           []positionUse // resolved to the node's current GPUs
	charge               quota.Charge  // to the namespace's quotas
}

type gpuUse struct {
	uuid string
	use  scheduler.Use
}

type positionUse struct {
	gpu int
	use scheduler.Use
}

func newAllocation(pod *scheduler.Pod, placement scheduler.Placement) *allocation {
	h := &allocation{uid: pod.UID, namespace: pod.Namespace, name: pod.Name, placement: placement, class: pod.Class,
		priority: pod.Priority, created: pod.Created, group: pod.Group}
	for _, c := range pod.Containers {
		h.kinds = append(h.kinds, c.Kind)
	}
	for uuid, use := range scheduler.Uses(pod.Containers, placement.Containers) {
		h.byUUID = append(h.byUUID, gpuUse{uuid, use})
	}
	slices.SortFunc(h.byUUID, func(a, b gpuUse) int { return strings.Compare(a.uuid, b.uuid) })
	return h
}

// on resolves the allocation to these GPUs.
func (h *allocation) on(c *gpus) *allocation {
	resolved := *h
	resolved.byPosition = make([]positionUse, 0, len(h.byUUID))
	for _, u := range h.byUUID {
		if i, ok := c.position[u.uuid]; ok {
			resolved.byPosition = append(resolved.byPosition, positionUse{i, u.use})
		}
	}
	return &resolved
}

func (h *allocation) sameAs(other *allocation) bool {
	return h.uid == other.uid && samePlacement(h.placement, other.placement) && slices.Equal(h.kinds, other.kinds)
}

func samePlacement(a, b scheduler.Placement) bool {
	return a.Node == b.Node && slices.EqualFunc(a.Containers, b.Containers, slices.Equal[[]grant.Share])
}

func (n *node) find(uid string) (int, bool) {
	return slices.BinarySearchFunc(n.pods, uid, func(h *allocation, uid string) int { return strings.Compare(h.uid, uid) })
}

// allocation returns nil if there is none, or n is nil.
func (n *node) allocation(uid string) *allocation {
	if n == nil {
		return nil
	}
	if i, ok := n.find(uid); ok {
		return n.pods[i]
	}
	return nil
}

func (n *node) with(h *allocation) *node {
	h = h.on(n.gpus)
	next := *n
	next.used = slices.Clone(n.used)
	if i, ok := n.find(h.uid); ok {
		next.pods = slices.Clone(n.pods)
		next.pods[i] = h
		next.count(n.pods[i].byPosition, scheduler.Use.Sub)
	} else {
		next.pods = slices.Concat(n.pods[:i], []*allocation{h}, n.pods[i:])
	}
	next.count(h.byPosition, scheduler.Use.Add)
	return &next
}

func (n *node) without(uid string) *node {
	i, ok := n.find(uid)
	if !ok {
		return n
	}
	next := *n
	next.pods = slices.Delete(slices.Clone(n.pods), i, i+1)
	next.used = slices.Clone(n.used)
	next.count(n.pods[i].byPosition, scheduler.Use.Sub)
	return &next
}

func (n *node) count(takes []positionUse, op func(a, b scheduler.Use) scheduler.Use) {
	for _, t := range takes {
		n.used[t.gpu] = op(n.used[t.gpu], t.use)
	}
}

func (n *node) withGPUs(c *gpus) *node {
	next := *n
	next.gpus = c
	next.used = slices.Clone(c.others)
	next.pods = make([]*allocation, len(n.pods))
	for i, h := range n.pods {
		next.pods[i] = h.on(c)
		next.count(next.pods[i].byPosition, scheduler.Use.Add)
	}
	return &next
}

// equal reports whether a request that names no UUIDs gets the same outcome on both.
func (n *node) equal(other *node) bool {
	return n.gpus.kind == other.gpus.kind && slices.Equal(n.used, other.used)
}

func (n *node) empty() bool { return !n.registered && len(n.pods) == 0 }

// asRegistered returns n if nothing changes.
func (n *node) asRegistered(object *scheduler.Node, inv scheduler.Inventory, problem string) *node {
	if n.registered && n.problem == problem && n.gpus.same(inv) && maps.Equal(n.labels, object.Labels) {
		return n
	}
	next := *n
	if !n.gpus.same(inv) {
		next = *n.withGPUs(newGPUs(inv))
	}
	next.registered, next.problem, next.labels = true, problem, object.Labels
	return &next
}

// usable ignores how much is free.
func usable(gpu *scheduler.GPU, typeFits bool, rules *request.Rules) Code {
	switch {
	case !gpu.Healthy:
		return CardNotHealth
	case gpu.Cordoned:
		return GPUCordoned
	case gpu.MemoryMiB < 1 || gpu.Replicas < 1:
		return GPUEmpty
	case !typeFits || !rules.ModeFits(gpu.Mode):
		return CardTypeMismatch
	case gpu.Mode == api.ModeMIG:
		return GPUMIGMode
	case !rules.IsolationFits(gpu.Isolation):
		return IsolationUnmet
	case !rules.UUIDFits(gpu.UUID):
		return CardUUIDMismatch
	}
	return OK
}

type gpuLoad struct {
	containers []int         // positions in compiled.containers, ascending
	most       scheduler.Use // peak use
}

// simulate starts the containers with one added: init containers end, others keep running.
func (a *compiled) simulate(l *gpuLoad, add int, others, total *scheduler.Use) (scheduler.Use, Code) {
	m := startup{others: others, total: total}
	rest := l.containers
	for len(rest) > 0 && rest[0] < add {
		m.start(&a.containers[rest[0]])
		rest = rest[1:]
	}
	m.start(&a.containers[add])
	for _, i := range rest {
		m.start(&a.containers[i])
	}
	return m.most, m.code
}

// peak is the peak use of these containers.
func (a *compiled) peak(containers []int, others, total *scheduler.Use) scheduler.Use {
	m := startup{others: others, total: total}
	for _, i := range containers {
		m.start(&a.containers[i])
	}
	return m.most
}

// startup is the state of one GPU while the pod starts.
type startup struct {
	others, total *scheduler.Use
	running, most scheduler.Use // of the pod
	exclusive     bool          // a container with exclusive use runs
	code          Code          // the first broken rule
}

func (m *startup) start(container *container) {
	exclusive := container.Exclusive(m.total.Cores)
	switch {
	case m.code != OK:
	case exclusive && m.others.Replicas+m.running.Replicas > 0 || m.exclusive:
		m.code = ExclusiveDeviceAllocateConflict
	case container.Cores == 0 && m.others.Cores+m.running.Cores >= m.total.Cores && m.total.Cores > 0:
		m.code = CardComputeUnitsExhausted
	}
	use := container.Use(m.total.MemoryMiB).Add(m.running)
	m.most = m.most.Max(use)
	if container.kind != scheduler.Init {
		m.running = use
		m.exclusive = m.exclusive || exclusive
	}
}

// check returns why a usable GPU can't serve the added container, and the pod's peak use.
func (a *compiled) check(l *gpuLoad, add int, others, total *scheduler.Use) (most scheduler.Use, reason Code) {
	most, rule := a.simulate(l, add, others, total)
	all := others.Add(most)
	switch {
	case all.Replicas > total.Replicas:
		return most, CardTimeSlicingExhausted
	case rule == ExclusiveDeviceAllocateConflict || a.gpu.Mutex && others.Replicas > 0:
		return most, ExclusiveDeviceAllocateConflict
	case all.MemoryMiB > total.MemoryMiB:
		return most, CardInsufficientMemory
	case all.Cores > total.Cores:
		return most, CardInsufficientCore
	}
	return most, rule
}
