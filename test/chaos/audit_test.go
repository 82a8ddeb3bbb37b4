//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// audit sees every revision of every pod in their order, and adds what is granted of each GPU.
type audit struct {
	mu         sync.Mutex
	pods       map[types.UID]*entry
	used       map[string]map[types.UID]grant.Share // by GPU
	violations []string
	bound      int // pods that were bound
	ended      error
}

type entry struct {
	pod   *v1.Pod
	since time.Time // when it was bound, or else created
}

func newAudit(ctx context.Context, client kubernetes.Interface) (*audit, error) {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	a := &audit{pods: map[types.UID]*entry{}, used: map[string]map[types.UID]grant.Share{}}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.CoreV1().Pods(namespace).Watch(ctx, o)
		},
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for e := range w.ResultChan() {
			a.event(e)
		}
		if ctx.Err() == nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.ended = fmt.Errorf("the audit's watch has ended: it has not seen every revision")
		}
	}()
	return a, nil
}

func (a *audit) event(e watch.Event) {
	pod, is := e.Object.(*v1.Pod)
	if !is {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.pods[pod.UID]
	for _, shares := range a.used {
		delete(shares, pod.UID)
	}
	if e.Type == watch.Deleted {
		delete(a.pods, pod.UID)
		return
	}
	now := &entry{pod: pod, since: time.Now()}
	switch {
	case before == nil:
	case before.pod.Spec.NodeName == pod.Spec.NodeName:
		now.since = before.since
	default:
		a.bound++
	}
	a.pods[pod.UID] = now
	if pod.Spec.NodeName == "" {
		return
	}
	changed := before == nil || before.pod.Spec.NodeName == "" || before.pod.Annotations[api.AnnotationGrant] != pod.Annotations[api.AnnotationGrant]
	g, err := grant.DecodeGrant(pod.Annotations[api.AnnotationGrant])
	if err != nil {
		a.violations = append(a.violations, fmt.Sprintf("revision %s: pod %s is bound without a valid grant: %v", pod.ResourceVersion, pod.Name, err))
		return
	}
	for _, shares := range g.Containers {
		for _, s := range shares {
			if a.used[s.UUID] == nil {
				a.used[s.UUID] = map[types.UID]grant.Share{}
			}
			a.used[s.UUID][pod.UID] = s
			if changed {
				a.check(s.UUID, pod)
			}
		}
	}
}

func (a *audit) check(uuid string, last *v1.Pod) {
	memory, cores := int64(0), 0
	for _, s := range a.used[uuid] {
		memory += s.MemoryMiB
		cores += s.CorePercent
	}
	if memory <= memoryOfGPU && cores <= 100 {
		return
	}
	var names []string
	for uid := range a.used[uuid] {
		names = append(names, a.pods[uid].pod.Name+" by "+a.pods[uid].pod.Annotations[api.AnnotationLeader])
	}
	slices.Sort(names)
	a.violations = append(a.violations, fmt.Sprintf("revision %s: %d of %d MiB and %d percent of %s are granted, the last to %s: %s",
		last.ResourceVersion, memory, memoryOfGPU, cores, uuid, last.Name, strings.Join(names, ", ")))
}

// take returns what was wrong since the last call.
func (a *audit) take() ([]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := a.violations
	a.violations = nil
	return found, a.ended
}

func (a *audit) snapshot() []*entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.pods))
}

func (a *audit) boundPods() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bound
}
