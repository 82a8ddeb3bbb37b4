package nriplugin

import (
	"sync"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

// Known is a container that the runtime reported, with a GPU or without.
type Known struct {
	Namespace, Pod, PodUID, Name string
	// Exempt: its namespace is one of ExemptNamespaces.
	Exempt bool
	// pod is the ID of its sandbox; size is the size of NRI's record in bytes, 0 after the container ended.
	pod  string
	size int
}

func (p *Plugin) Container(id string) (Known, bool) {
	return p.known.get(id)
}

// known are the containers that the runtime listed or created.
type known struct {
	mu   sync.Mutex
	byID map[string]Known
	// sizes are the sums of the sizes by sandbox, without those of 0.
	sizes map[string]int
}

func (k *known) get(id string) (Known, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.byID[id]
	return c, ok
}

func (k *known) add(id string, c Known) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.addLocked(id, c)
}

func (k *known) addLocked(id string, c Known) {
	if k.byID == nil {
		k.byID, k.sizes = map[string]Known{}, map[string]int{}
	}
	k.addSize(k.byID[id].pod, -k.byID[id].size)
	k.byID[id] = c
	k.addSize(c.pod, c.size)
}

func (k *known) addSize(pod string, size int) {
	if k.sizes[pod] += size; k.sizes[pod] == 0 {
		delete(k.sizes, pod)
	}
}

func (k *known) ended(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c, ok := k.byID[id]; ok {
		c.size = 0
		k.addLocked(id, c)
	}
}

func (k *known) sizeOfOthers(pod, id string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.byID[id]; c.pod == pod {
		return k.sizes[pod] - c.size
	}
	return k.sizes[pod]
}

func (k *known) remove(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c, ok := k.byID[id]; ok {
		k.addSize(c.pod, -c.size)
		delete(k.byID, id)
	}
}

func (k *known) replace(all map[string]Known) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.byID, k.sizes = nil, nil
	for id, c := range all {
		k.addLocked(id, c)
	}
}

func (p *Plugin) knownContainer(pod *api.PodSandbox, ctr *api.Container) Known {
	return Known{
		Namespace: pod.GetNamespace(), Pod: pod.GetName(), PodUID: pod.GetUid(), Name: ctr.GetName(),
		Exempt: p.exempt[pod.GetNamespace()], pod: ctr.GetPodSandboxId(), size: proto.Size(ctr),
	}
}
