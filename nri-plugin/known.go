package nriplugin

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/nri-plugin/bounds"
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
	p.known.mu.Lock()
	defer p.known.mu.Unlock()
	c, ok := p.known.byID[id]
	return c, ok
}

// known are the containers that the runtime listed or created.
type known struct {
	mu   sync.Mutex
	byID map[string]Known
	// sizes are the sums of the sizes by sandbox, without those of 0.
	sizes map[string]int
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
		Exempt: slices.Contains(p.ExemptNamespaces, pod.GetNamespace()), pod: ctr.GetPodSandboxId(), size: proto.Size(ctr),
	}
}

func checkPodSize(pod *api.PodSandbox) error {
	if size := proto.Size(pod); size > bounds.Pod {
		return tooLarge("pod %s has %s of labels and annotations, and gpuslice allows %s, because the container runtime could not synchronise its NRI plugins: make them smaller, for example with a ConfigMap volume",
			podName(pod), kib(size), kib(bounds.Pod))
	}
	return nil
}

// checkSize applies to all containers, in exempt namespaces too. answer can be nil.
func (p *Plugin) checkSize(pod *api.PodSandbox, ctr *api.Container, answer *api.ContainerAdjustment) error {
	if err := checkPodSize(pod); err != nil {
		return err
	}
	added := proto.Size(answer)
	if added > bounds.Answer {
		return tooLarge("pod %s container %q: gpuslice's changes to it have %s, and NRI allows %s: check the CDI spec of the GPUs",
			podName(pod), ctr.GetName(), kib(added), kib(bounds.Answer))
	}
	const remedy = "because the container runtime could not synchronise its NRI plugins: mount large data as files, or set enableServiceLinks: false in the pod"
	size := proto.Size(ctr) + added
	if size > bounds.Container {
		return tooLarge("pod %s container %q: environment (%d variables, %s), arguments, mounts and annotations have %s, and gpuslice allows %s, %s",
			podName(pod), ctr.GetName(), len(ctr.GetEnv()), kib(len(strings.Join(ctr.GetEnv(), ""))), kib(size), kib(bounds.Container), remedy)
	}
	total := proto.Size(pod) + size + p.known.sizeOfOthers(pod.GetId(), ctr.GetId())
	if total > bounds.PodTotal {
		return tooLarge("pod %s container %q: the pod and its containers together have %s of environment, arguments, mounts and annotations, and gpuslice allows %s, %s",
			podName(pod), ctr.GetName(), kib(total), kib(bounds.PodTotal), remedy)
	}
	return nil
}

func tooLarge(format string, args ...any) error {
	return &reasoned{reasonTooLarge, fmt.Errorf(format, args...)}
}

func kib(size int) string { return fmt.Sprintf("%d KiB", (size+1023)>>10) }

type shortened struct {
	text string
	err  error
}

func (s *shortened) Error() string { return s.text }
func (s *shortened) Unwrap() error { return s.err }

func shorten(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= bounds.ErrorText {
		return err
	}
	const end = " …"
	cut := bounds.ErrorText - len(end)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return &shortened{text[:cut] + end, err}
}
