package extender

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/gpuslice/gpuslice/scheduler/gang"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// kube-scheduler asks about a part of the nodes (percentageOfNodesToScore). If none of these fits, or many others are
// better, filter reserves the best of the others, refuses all nodes of the call, and nominates that one: kube-scheduler
// tries it first, and only it if it fits.
const (
	// leastNodes is how many nodes kube-scheduler looks for at least (1.36): if it asks about fewer, there are no others.
	leastNodes = 100
	// betterNodes is how many others have to be better. A nomination costs kube-scheduler a second cycle and three writes.
	betterNodes = 10
	// mostNominations of a pod before a try that may evict pods: other plugins may refuse the nodes. The n-th one after that
	// follows n such tries.
	mostNominations = 3
	// refusedTime is how long a node that kube-scheduler refused for one pod is not nominated for others, if others fit.
	refusedTime = time.Minute
	// nominateDelay is time for kube-scheduler to end the cycle, at the end of which it removes a nomination.
	nominateDelay = 100 * time.Millisecond
	// nominators write nominations. Even if each write takes a second, none waits for longer than the GPUs are reserved.
	nominators, mostWaiting = 4, 100
)

// elsewhere returns the node to nominate instead of one of the call; "": none.
func (s *Server) elsewhere(object *v1.Pod, nodes nodeList, j judged) string {
	uid := string(object.UID)
	if len(nodes.names) < leastNodes || !s.tries.mayNominate(uid, object.Status.NominatedNodeName) {
		return ""
	}
	if !s.mayLeave(object, len(j.fits) > 0) {
		return ""
	}
	asked := make(map[string]bool, len(nodes.names))
	for _, name := range nodes.names {
		asked[name] = true
	}
	affinity := nodeaffinity.GetRequiredNodeAffinity(object)
	best := func(n int, usable func(node string) bool) []string {
		return j.evaluation.Best(n, func(node string) bool {
			if asked[node] || s.tries.tried(uid, node) || !usable(node) || !s.Cluster.accepts(object, affinity, node) {
				return false
			}
			v := s.live(j.evaluation, node, j.nominated[node])
			return v.Fits
		})
	}
	now := s.Clock()
	notRefused := func(node string) bool { return !s.tries.refused(node, now) }
	if len(j.fits) > 0 {
		if s.tries.has(uid) || s.othersChoose(object) || kube.OthersJudge(object) {
			return ""
		}
		nodes := best(betterNodes, notRefused)
		if len(nodes) < betterNodes {
			return ""
		}
		if worst := j.evaluation.Verdict(nodes[betterNodes-1]); worst.Score <= j.best().score {
			return ""
		}
		return nodes[0]
	}
	for _, usable := range []func(string) bool{notRefused, func(string) bool { return true }} {
		if nodes := best(1, usable); len(nodes) > 0 {
			return nodes[0]
		}
	}
	s.tries.again(uid)
	return ""
}

// mayLeave is true for a pod of a group only if its group would have no other chance. Domains are of the call's nodes, and
// kube-scheduler tries the groups that it knows as a whole.
func (s *Server) mayLeave(pod *v1.Pod, fits bool) bool {
	name, in := gang.Of(pod)
	if !in {
		return true
	}
	if fits || name.API == gang.Kubernetes {
		return false
	}
	labels, _ := s.topology(s.Cluster.group(pod))
	return len(labels) == 0
}

// accepts foresees what kube-scheduler's own plugins decide. It need not be right.
func (c *Cluster) accepts(pod *v1.Pod, affinity nodeaffinity.RequiredNodeAffinity, name string) bool {
	object, exists, _ := c.nodes.GetByKey(name) // caches return no errors
	node, ok := object.(*v1.Node)
	if !exists || !ok || node.Spec.Unschedulable {
		return false
	}
	if match, err := affinity.Match(node); err != nil || !match {
		return false
	}
	_, refused := corev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, nil, true)
	return !refused
}

// nominate reports whether the node, which has GPUs reserved for the pod, will be nominated.
func (s *Server) nominate(pod *v1.Pod, node string) bool {
	if !s.tries.nominate(pod, node) {
		return false
	}
	select {
	case s.nominations <- nomination{pod, node, s.Clock()}:
		return true
	default:
		s.tries.written(string(pod.UID), node)
		return false
	}
}

// nominateAll runs until ctx ends.
func (s *Server) nominateAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-s.nominations:
			select {
			case <-ctx.Done():
				return
			case <-time.After(n.at.Add(nominateDelay).Sub(s.Clock())):
			}
			s.writeNomination(ctx, n)
		}
	}
}

// writeNomination writes nothing if kube-scheduler has tried the pod again meanwhile.
func (s *Server) writeNomination(ctx context.Context, n nomination) {
	uid := string(n.pod.UID)
	defer s.tries.written(uid, n.node)
	if _, err := s.Term(ctx); err != nil {
		return
	}
	// Nothing else makes kube-scheduler try the pod again soon.
	backoff := wait.Backoff{Steps: 5, Duration: nominateDelay, Factor: 2}
	err := retry.OnError(backoff, func(err error) bool { return !apierrors.IsNotFound(err) && ctx.Err() == nil }, func() error {
		if !s.tries.nominated(uid, n.node) {
			return nil
		}
		return kube.Nominate(ctx, s.Cluster.client, n.pod, n.node, time.Now())
	})
	if err != nil {
		s.Log.Info("failed to nominate a node", "pod", n.pod.Namespace+"/"+n.pod.Name, "node", n.node, "error", err)
	}
}

func nominating(node string, asked int) string {
	return fmt.Sprintf("node %s fits better than the %d nodes of this try: it is tried next", node, asked)
}

func (j judged) best() fitting {
	first := j.fits[0]
	for _, f := range j.fits[1:] {
		if compare(f, first) < 0 {
			first = f
		}
	}
	return first
}
