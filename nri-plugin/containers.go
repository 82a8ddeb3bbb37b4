package nriplugin

import (
	"sync"

	"github.com/containerd/nri/pkg/api"
)

// Told is a container that the runtime has told of, whether it has a card or not.
type Told struct {
	Namespace, Pod, PodUID, Name string
	// Exempt says that its namespace is one of ExemptNamespaces.
	Exempt bool
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
	if t.byID == nil {
		t.byID = map[string]Told{}
	}
	t.byID[id] = c
}

func (t *told) remove(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, id)
}

// replace is a list of all.
func (t *told) replace(all map[string]Told) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID = all
}

// toldOf is a container as the audit is told of it; pod may be nil.
func (p *Plugin) toldOf(pod *api.PodSandbox, ctr *api.Container) Told {
	return Told{
		Namespace: pod.GetNamespace(), Pod: pod.GetName(), PodUID: pod.GetUid(), Name: ctr.GetName(),
		Exempt: p.exempt[pod.GetNamespace()],
	}
}
