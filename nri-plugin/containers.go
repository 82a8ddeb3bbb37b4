package nriplugin

import (
	"sync"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

// Told is a container that the runtime has told of, whether it has a GPU or not.
type Told struct {
	Namespace, Pod, PodUID, Name string
	// Exempt says that its namespace is one of ExemptNamespaces.
	Exempt bool
	// pod is the ID of its sandbox; size is the size of NRI's record in bytes, 0 after the container ended.
	pod  string
	size int
}

// Container says whose a container is. It is for the audit, which meets processes of
// containers that were granted nothing.
func (p *Plugin) Container(id string) (Told, bool) {
	return p.told.get(id)
}

// told remembers the runtime's containers: those that it listed, and those that were
// created since.
type told struct {
	mu   sync.Mutex
	byID map[string]Told
	// sizes are the sums of the containers' of each sandbox. Those of 0 are left out.
	sizes map[string]int
}

func (t *told) get(id string) (Told, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, known := t.byID[id]
	return c, known
}

func (t *told) add(id string, c Told) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(id, c)
}

// put is add under the lock.
func (t *told) put(id string, c Told) {
	if t.byID == nil {
		t.byID, t.sizes = map[string]Told{}, map[string]int{}
	}
	t.resize(t.byID[id], 0)
	t.byID[id] = c
	t.resize(Told{pod: c.pod}, c.size)
}

// resize puts another size into the sum of a container's sandbox.
func (t *told) resize(c Told, size int) {
	if t.sizes[c.pod] += size - c.size; t.sizes[c.pod] == 0 {
		delete(t.sizes, c.pod)
	}
}

// ended notes that the runtime does not list a container any more.
func (t *told) ended(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c, known := t.byID[id]; known {
		c.size = 0
		t.put(id, c)
	}
}

// sizeOfOthers returns the size of the records of a sandbox's other containers together.
func (t *told) sizeOfOthers(pod, id string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.byID[id]; c.pod == pod {
		return t.sizes[pod] - c.size
	}
	return t.sizes[pod]
}

func (t *told) remove(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c, known := t.byID[id]; known {
		t.resize(c, 0)
		delete(t.byID, id)
	}
}

// replace is a list of all.
func (t *told) replace(all map[string]Told) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID, t.sizes = nil, nil
	for id, c := range all {
		t.put(id, c)
	}
}

// toldOf is a container as the audit is told of it; pod may be nil.
func (p *Plugin) toldOf(pod *api.PodSandbox, ctr *api.Container) Told {
	return Told{
		Namespace: pod.GetNamespace(), Pod: pod.GetName(), PodUID: pod.GetUid(), Name: ctr.GetName(),
		Exempt: p.exempt[pod.GetNamespace()], pod: ctr.GetPodSandboxId(), size: proto.Size(ctr),
	}
}
