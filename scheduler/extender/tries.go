package extender

import (
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
)

// tries are the pods to which filter returned only the best nodes, until they are bound or gone, with the nodes on which
// they were not bound. Another extender, or the API server, may refuse these nodes each time.
type tries struct {
	cluster *Cluster

	mu        sync.Mutex
	pods      map[string]*tried    // by UID
	refusedAt map[string]time.Time // nominated nodes that kube-scheduler refused
}

type tried struct {
	nodes       map[string]bool
	nominations int
	nominated   string // the latest one
	waits       bool   // the latest nomination: it is not written, and no try followed
	failed      int    // tries since the latest nomination that found no node
}

func newTries(c *Cluster) *tries {
	return &tries{cluster: c, pods: map[string]*tried{}, refusedAt: map[string]time.Time{}}
}

// add remembers nothing of a pod that the cache does not have: no event would remove it.
func (t *tries) add(pod *v1.Pod, node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of := t.of(pod); of != nil {
		of.nodes[node] = true
	}
}

// nominate returns false for a pod that can't be remembered.
func (t *tries) nominate(pod *v1.Pod, node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.of(pod)
	if of == nil {
		return false
	}
	of.nodes[node], of.nominated, of.waits, of.failed = true, node, true, 0
	of.nominations++
	return true
}

// of needs mu.
func (t *tries) of(pod *v1.Pod) *tried {
	uid := string(pod.UID)
	// The cache is changed before the event that removes the pod here.
	if p, err := t.cluster.pods.Pods(pod.Namespace).Get(pod.Name); err != nil || p.UID != pod.UID || p.Spec.NodeName != "" {
		delete(t.pods, uid)
		return nil
	}
	if t.pods[uid] == nil {
		t.pods[uid] = &tried{nodes: map[string]bool{}}
	}
	return t.pods[uid]
}

// begin is for each try. kube-scheduler asks about many nodes if it refused the nominated one.
func (t *tries) begin(pod *v1.Pod, asked []string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of, node := t.pods[string(pod.UID)], pod.Status.NominatedNodeName
	if of == nil {
		return
	}
	of.waits = false
	if node != "" && node == of.nominated && len(asked) >= leastNodes && !slices.Contains(asked, node) {
		maps.DeleteFunc(t.refusedAt, func(_ string, at time.Time) bool { return now.Sub(at) >= refusedTime })
		t.refusedAt[node] = now
	}
}

// refused reports whether kube-scheduler refused the node lately.
func (t *tries) refused(node string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.refusedAt[node]
	return ok && now.Sub(at) < refusedTime
}

// nominated reports whether the last try nominated the node (any, if it is empty), which is not written yet.
func (t *tries) nominated(uid, node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.pods[uid]
	return of != nil && of.waits && (node == "" || of.nominated == node)
}

// written ends the wait for the nomination.
func (t *tries) written(uid, node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of := t.pods[uid]; of != nil && of.nominated == node {
		of.waits = false
	}
}

// mayNominate is false if kube-scheduler itself nominated a node, for which it evicts pods.
func (t *tries) mayNominate(uid, nominated string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.pods[uid]
	if of == nil {
		return nominated == ""
	}
	return (nominated == "" || nominated == of.nominated) && (of.nominations < mostNominations || of.failed >= of.nominations)
}

// fail is for a try that found no node.
func (t *tries) fail(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of := t.pods[uid]; of != nil {
		of.failed++
	}
}

// again lets all nodes be tried again.
func (t *tries) again(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of := t.pods[uid]; of != nil {
		clear(of.nodes)
	}
}

func (t *tries) tried(uid, node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pods[uid] != nil && t.pods[uid].nodes[node]
}

func (t *tries) remove(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pods, uid)
}

func (t *tries) has(uid string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pods[uid] != nil
}

// others returns the nodes that were not tried, or all of them if there are no others: then all are tried again. A single
// node, as kube-scheduler asks about the nominated one, is no reason for that.
func (t *tries) others(uid string, fits []fitting) []fitting {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.pods[uid]
	if of == nil || len(fits) <= 1 {
		return fits
	}
	others := slices.DeleteFunc(slices.Clone(fits), func(f fitting) bool { return of.nodes[f.name] })
	if len(others) == 0 {
		clear(of.nodes)
		return fits
	}
	return others
}
