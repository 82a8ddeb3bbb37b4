//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/test/kube"
)

// capacities is what may be granted of each GPU of a node.
func capacities(node *kube.Cluster) (map[string]scheduler.Use, error) {
	status, err := node.Status(context.Background())
	all := map[string]scheduler.Use{}
	for _, c := range status.GPUs {
		all[c.UUID] = scheduler.Use{MemoryMiB: c.MemoryMiB, Cores: 100, Replicas: 10}
	}
	return all, err
}

// reservations follows all pods of the cluster, for as long as it is there, and finds what
// must never be: a GPU of which more is granted to pods than it has, or a pod that the
// kubelet took back (UnexpectedAdmissionError).
type reservations struct {
	client   kubernetes.Interface
	capacity map[string]scheduler.Use

	mu sync.Mutex
	// tolerant: the kubelet may reject pods; forgiven are those that it rejected.
	tolerant bool
	forgiven map[string]bool
	pods     map[string]*corev1.Pod
	wrong    map[string]bool
	stop     chan struct{}
}

func followReservations(client kubernetes.Interface) (*reservations, error) {
	capacity, err := capacities(cluster)
	if err != nil {
		return nil, err
	}
	b := &reservations{client: client, capacity: capacity, forgiven: map[string]bool{}, pods: map[string]*corev1.Pod{}, wrong: map[string]bool{}, stop: make(chan struct{})}
	factory := informers.NewSharedInformerFactory(client, 0)
	_, err = factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    b.set,
		UpdateFunc: func(_, pod any) { b.set(pod) },
		DeleteFunc: b.delete,
	})
	factory.Start(b.stop)
	return b, err
}

// extend has the GPUs of another node followed too.
func (b *reservations) extend(capacity map[string]scheduler.Use) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.Copy(b.capacity, capacity)
}

func (b *reservations) delete(object any) {
	if gone, unknown := object.(cache.DeletedFinalStateUnknown); unknown {
		object = gone.Obj
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, string(object.(*corev1.Pod).UID))
}

func (b *reservations) set(object any) {
	pod := object.(*corev1.Pod)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tolerant && pod.Status.Phase == corev1.PodFailed {
		b.forgive(pod)
	}
	if pod.Status.Phase == corev1.PodFailed && !b.forgiven[string(pod.UID)] {
		if reason := pod.Status.Reason; reason == "UnexpectedAdmissionError" || strings.HasPrefix(reason, "OutOf") {
			b.wrong[fmt.Sprintf("pod %s/%s: %s: %s", pod.Namespace, pod.Name, reason, pod.Status.Message)] = true
		}
	}
	b.pods[string(pod.UID)] = pod
	if len(b.overbooked(slices.Collect(maps.Values(b.pods)))) == 0 {
		return
	}
	// After a break the informer reports new pods before it reports the deleted ones.
	list, err := b.client.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return
	}
	now := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		now[i] = &list.Items[i]
	}
	for _, text := range b.overbooked(now) {
		b.wrong[fmt.Sprintf("after pod %s/%s: %s", pod.Namespace, pod.Name, text)] = true
	}
}

// overbooked names the GPUs of which more is granted than they have.
func (b *reservations) overbooked(pods []*corev1.Pod) (found []string) {
	for gpu, use := range granted(pods) {
		if left := b.capacity[gpu].Sub(use); left.MemoryMiB < 0 || left.Cores < 0 || left.Replicas < 0 {
			found = append(found, fmt.Sprintf("GPU %s: %+v of %+v is granted", gpu, use, b.capacity[gpu]))
		}
	}
	return found
}

// granted is what the pods that are bound and have not ended were granted of each GPU, by their annotations.
func granted(pods []*corev1.Pod) map[string]scheduler.Use {
	total := map[string]scheduler.Use{}
	for _, p := range pods {
		pod := convert.Pod(p)
		text := pod.Annotations["gpuslice.io/grant"]
		if pod.Node == "" || pod.Ended || text == "" {
			continue
		}
		decoded, err := grant.DecodeGrant(text)
		if err != nil {
			continue // a cheat's
		}
		shares := make([][]grant.Share, len(pod.Containers))
		for i, c := range pod.Containers {
			shares[i] = decoded.Containers[c.Name]
		}
		for gpu, use := range scheduler.Uses(pod.Containers, shares) {
			total[gpu] = total[gpu].Add(use)
		}
	}
	return total
}

// forgive forgives a pod that the kubelet rejected, or that it may have rejected and not yet reported.
func (b *reservations) forgive(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodFailed || pod.Spec.NodeName != "" && pod.Status.StartTime == nil {
		b.forgiven[string(pod.UID)] = true
	}
}

// tolerate sets whether the kubelet may reject pods from now on. The informer can report later a pod that was
// rejected before.
func (b *reservations) tolerate(tolerant bool) {
	list, err := b.client.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && !tolerant {
		for i := range list.Items {
			b.forgive(&list.Items[i])
		}
	}
	b.tolerant = tolerant
}

// close returns what was found.
func (b *reservations) close() []string {
	close(b.stop)
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.wrong))
}
