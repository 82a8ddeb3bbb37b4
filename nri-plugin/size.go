package nriplugin

import (
	"fmt"
	"unicode/utf8"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/nri-plugin/bounds"
)

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
			podName(pod), ctr.GetName(), len(ctr.GetEnv()), kib(lengthOf(ctr.GetEnv())), kib(size), kib(bounds.Container), remedy)
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

func lengthOf(list []string) int {
	n := 0
	for _, s := range list {
		n += len(s)
	}
	return n
}

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
