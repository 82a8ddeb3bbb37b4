package extender

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

var errNoPod = errors.New("the call has no pod")

func (s *Server) request(p *v1.Pod) (*scheduler.Pod, *request.Request, error) {
	if p == nil {
		return nil, nil, errNoPod
	}
	pod := convert.Pod(p)
	r, err := s.Engine.Request(pod)
	return pod, r, err
}

func (s *Server) filter(ctx context.Context, args *extenderv1.ExtenderArgs) (*extenderv1.ExtenderFilterResult, error) {
	return s.filterNodes(ctx, args, true)
}

func (s *Server) dryRun(ctx context.Context, args *extenderv1.ExtenderArgs) (*extenderv1.ExtenderFilterResult, error) {
	return s.filterNodes(ctx, args, false)
}

func (s *Server) filterNodes(ctx context.Context, args *extenderv1.ExtenderArgs, reserve bool) (*extenderv1.ExtenderFilterResult, error) {
	nodes := candidates(args)
	pod, r, err := s.request(args.Pod)
	if err != nil {
		s.Metrics.Denied(component, "BadRequest")
		return nodes.none(err.Error()), err
	}
	if r == nil {
		return nodes.all(), nil
	}
	judge := s.live
	if !reserve {
		judge = s.simulated(nodes)
	} else {
		if _, err := s.Term(ctx); err != nil {
			return nodes.later(err.Error()), err
		}
		if s.binds.has(pod.UID) {
			return nodes.later(errBinding.Error()), errBinding
		}
		s.tries.begin(args.Pod, nodes.names, s.Clock())
		if now := s.Cluster.group(args.Pod); now != nil {
			if why := now.Incomplete(); why != "" {
				return nodes.none(why), errors.New(why)
			}
		}
	}
	for range maxAttempts {
		j := s.evaluate(pod, r, nodes, judge)
		fits, result := j.fits, j.result
		accepted, noDomain, inDomain := len(fits), "", false
		if reserve {
			if node := s.elsewhere(args.Pod, nodes, j); node != "" {
				if _, err := s.reserve(pod, r, node, owner(pod.UID)); err == nil && s.nominate(args.Pod, node) {
					s.requeuer.remove(args.Pod.UID)
					s.evicting.remove(args.Pod.UID)
					return nodes.none(nominating(node, len(nodes.names))), nil
				}
			}
			fits, noDomain = s.domain(args.Pod, fits)
			inDomain = len(fits) < accepted
			fits = s.tries.others(pod.UID, fits)
		}
		if len(fits) == 0 {
			s.Metrics.Denied(component, j.reason.String())
			if reserve {
				s.release(pod.UID)
				s.tries.fail(pod.UID)
				s.requeuer.add(args.Pod)
				s.groupFailed(args.Pod, noDomain != "" || len(result.FailedNodes) > 0)
				s.evicting.add(args.Pod, result.FailedNodes, s.Clock())
			}
			if noDomain != "" {
				return nodes.none(noDomain), errors.New(noDomain)
			}
			return result, fmt.Errorf("pod %s/%s fits on none of %d nodes, most frequent reason: %s", pod.Namespace, pod.Name,
				len(nodes.names), j.reason.Brief())
		}
		if !reserve {
			return result, nil
		}
		chosen := best(fits)
		_, err := s.reserve(pod, r, chosen, owner(pod.UID))
		switch {
		case err == nil:
			s.requeuer.remove(args.Pod.UID)
			s.evicting.remove(args.Pod.UID)
			names := among(fits, len(fits))
			if !inDomain && !s.tries.has(pod.UID) && !s.othersChoose(args.Pod) {
				names = among(fits, s.BestNodes)
				s.tries.add(args.Pod, chosen)
			}
			return nodes.answer(names, result.FailedNodes, result.FailedAndUnresolvableNodes), nil
		case errors.Is(err, engine.ErrNoFit): // another pod reserved since the evaluation
			s.Metrics.Conflict(component)
		default:
			return nodes.none(err.Error()), err
		}
	}
	s.Metrics.Denied(component, "Races")
	err = fmt.Errorf("pod %s/%s: other pods reserved the chosen GPUs %d times in a row: kube-scheduler retries",
		pod.Namespace, pod.Name, maxAttempts)
	return nodes.later(err.Error()), err
}

// release ends the reservation of an earlier try: kube-scheduler, or another extender, refused that node.
func (s *Server) release(podUID string) {
	if s.Engine.AllocatedNode(podUID) != "" {
		s.Engine.Unreserve(podUID, owner(podUID))
		s.requeuer.freed()
	}
}

// maxAttempts is small, because kube-scheduler schedules no other pod during the call.
const maxAttempts = 5

type fitting struct {
	name  string
	score int64
}

// compare puts the best first, and equal ones by name.
func compare(a, b fitting) int {
	return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.name, b.name))
}

func best(fits []fitting) string { return slices.MinFunc(fits, compare).name }

// DefaultBestNodes is for Options.BestNodes: kube-scheduler scores all that it gets, and none if it gets one.
const DefaultBestNodes = 1

// othersChoose reports whether kube-scheduler's plugins prefer nodes to others for the pod.
func (s *Server) othersChoose(p *v1.Pod) bool {
	return s.prefers(p) || len(p.Spec.ResourceClaims) > 0 // of which a claim can prefer devices
}

// prefers reports whether the pod prefers nodes by more than GPUs.
func (s *Server) prefers(p *v1.Pod) bool { return kube.Prefers(p) || s.Cluster.avoids(p) }

// among returns the names of the n best, in their order.
func among(fits []fitting, n int) (names []string) {
	if len(fits) > n {
		sorted := slices.Clone(fits)
		slices.SortFunc(sorted, compare)
		worst := sorted[n-1]
		fits = slices.DeleteFunc(fits, func(f fitting) bool { return compare(f, worst) > 0 })
	}
	for _, f := range fits {
		names = append(names, f.name)
	}
	return names
}

type judge func(evaluation *engine.Evaluation, node string, nominated []*v1.Pod) engine.Verdict

// live judges a node of the cluster, with the pods that are nominated for it.
func (s *Server) live(evaluation *engine.Evaluation, node string, nominated []*v1.Pod) engine.Verdict {
	v := evaluation.Verdict(node)
	if v.Fits && len(nominated) > 0 {
		v = evaluation.On(s.withPods(evaluation.Snapshot().Overlay(), node, nominated), node)
	}
	return v
}

// simulated judges nodes of the call that the cluster does not have as an autoscaler's templates.
func (s *Server) simulated(n nodeList) judge {
	if n.objects == nil {
		return s.live
	}
	templates := make(map[string]*v1.Node, len(n.objects.Items))
	for i := range n.objects.Items {
		templates[n.objects.Items[i].Name] = &n.objects.Items[i]
	}
	return func(evaluation *engine.Evaluation, node string, nominated []*v1.Pod) engine.Verdict {
		if template := templates[node]; template != nil && !evaluation.Exists(node) {
			return s.Engine.Template(evaluation, convert.Node(template))
		}
		return s.live(evaluation, node, nominated)
	}
}

// judged is what the nodes of a call are for a pod.
type judged struct {
	evaluation *engine.Evaluation
	nominated  map[string][]*v1.Pod
	fits       []fitting
	result     *extenderv1.ExtenderFilterResult
	reason     engine.Code // the most frequent one among the nodes that do not fit
}

func (s *Server) evaluate(pod *scheduler.Pod, r *request.Request, nodes nodeList, judge judge) judged {
	evaluation := s.Engine.Evaluate(s.Engine.Snapshot(), pod, r)
	j := judged{evaluation: evaluation, nominated: s.nominated(pod)}
	if err := evaluation.Err(); err != nil {
		j.result, j.reason = nodes.none(err.Error()), engine.NodeUnregistered
		return j
	}
	failed, unresolvable := extenderv1.FailedNodesMap{}, extenderv1.FailedNodesMap{}
	var count engine.NodeCounts
	passed := []string{}
	for _, name := range nodes.names {
		v := judge(evaluation, name, j.nominated[name])
		if v.Fits {
			j.fits, passed = append(j.fits, fitting{name, v.Score}), append(passed, name)
			continue
		}
		count[v.Reason()]++
		if reasons := v.Reasons(); reasons.Evictable() {
			failed[name] = v.Text()
		} else {
			unresolvable[name] = v.Text()
		}
	}
	j.result, j.reason = nodes.answer(passed, failed, unresolvable), count.Main()
	return j
}

// prioritize scores the nodes from 0 to 10. Only the best one, or the one that filter reserved, gets 10. If the pod
// prefers nodes by more than GPUs, the scores are lower, so that kube-scheduler's count.
func (s *Server) prioritize(_ context.Context, args *extenderv1.ExtenderArgs) (*extenderv1.HostPriorityList, error) {
	nodes := candidates(args)
	list := make(extenderv1.HostPriorityList, len(nodes.names))
	for i, name := range nodes.names {
		list[i].Host = name
	}
	pod, r, err := s.request(args.Pod)
	if err != nil || r == nil {
		return &list, err
	}
	evaluation := s.Engine.Evaluate(s.Engine.Snapshot(), pod, r)
	var fits []fitting
	for _, name := range nodes.names {
		if v := evaluation.Verdict(name); v.Fits {
			fits = append(fits, fitting{name, v.Score})
		}
	}
	if len(fits) == 0 {
		return &list, nil
	}
	first := best(fits)
	low, high := fits[0].score, fits[0].score
	reserved := s.Engine.AllocatedNode(pod.UID)
	for _, f := range fits {
		low, high = min(low, f.score), max(high, f.score)
		if f.name == reserved {
			first = reserved
		}
	}
	most := extenderv1.MaxExtenderPriority
	if s.prefers(args.Pod) {
		most = max(most*int64(s.ScoreWithPreferences)/100, 1)
	}
	scores := make(map[string]int64, len(fits))
	for _, f := range fits {
		if high > low {
			scores[f.name] = (most - 1) * (f.score - low) / (high - low)
		}
	}
	scores[first] = most
	for i := range list {
		list[i].Score = scores[list[i].Host]
	}
	return &list, nil
}

// nodeList are the candidates of a call: names if kube-scheduler has nodeCacheCapable, else
// objects. The answer uses the same form.
type nodeList struct {
	names   []string
	objects *v1.NodeList
}

func candidates(args *extenderv1.ExtenderArgs) nodeList {
	n := nodeList{names: []string{}}
	switch {
	case args.NodeNames != nil:
		n.names = append(n.names, *args.NodeNames...)
	case args.Nodes != nil:
		n.objects = args.Nodes
		for i := range args.Nodes.Items {
			n.names = append(n.names, args.Nodes.Items[i].Name)
		}
	}
	return n
}

// answer needs passed in the order of the call.
func (n nodeList) answer(passed []string, failed, unresolvable extenderv1.FailedNodesMap) *extenderv1.ExtenderFilterResult {
	result := &extenderv1.ExtenderFilterResult{FailedNodes: failed, FailedAndUnresolvableNodes: unresolvable}
	if n.objects == nil {
		result.NodeNames = &passed
		return result
	}
	result.Nodes = &v1.NodeList{TypeMeta: n.objects.TypeMeta, ListMeta: n.objects.ListMeta, Items: make([]v1.Node, 0, len(passed))}
	for i := range n.objects.Items {
		if len(passed) > 0 && n.objects.Items[i].Name == passed[0] {
			result.Nodes.Items, passed = append(result.Nodes.Items, n.objects.Items[i]), passed[1:]
		}
	}
	return result
}

func (n nodeList) all() *extenderv1.ExtenderFilterResult { return n.answer(n.names, nil, nil) }

// none rejects every candidate for a reason that preemption cannot remove.
func (n nodeList) none(reason string) *extenderv1.ExtenderFilterResult {
	return n.answer([]string{}, extenderv1.FailedNodesMap{}, n.failed(reason))
}

// later rejects every candidate for a temporary reason.
func (n nodeList) later(reason string) *extenderv1.ExtenderFilterResult {
	return n.answer([]string{}, n.failed(reason), extenderv1.FailedNodesMap{})
}

func (n nodeList) failed(reason string) extenderv1.FailedNodesMap {
	failed := make(extenderv1.FailedNodesMap, len(n.names))
	for _, name := range n.names {
		failed[name] = reason
	}
	return failed
}
