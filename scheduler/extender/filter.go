package extender

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

var errNoPod = errors.New("the call names no pod")

// wanted is what a call's pod asks for; a nil request: nothing of ours.
func (s *Server) wanted(p *v1.Pod) (*scheduler.Pod, *request.Request, error) {
	if p == nil {
		return nil, nil, errNoPod
	}
	pod := kube.Pod(p)
	r, err := s.Engine.Request(pod)
	return pod, r, err
}

// filter answers which nodes can take the pod, and reserves the best one.
func (s *Server) filter(_ context.Context, args *extenderv1.ExtenderArgs) (*extenderv1.ExtenderFilterResult, error) {
	return s.judge(args, true)
}

// dryRun answers which nodes could take the pod. It changes nothing.
func (s *Server) dryRun(_ context.Context, args *extenderv1.ExtenderArgs) (*extenderv1.ExtenderFilterResult, error) {
	return s.judge(args, false)
}

func (s *Server) judge(args *extenderv1.ExtenderArgs, reserve bool) (*extenderv1.ExtenderFilterResult, error) {
	nodes := candidates(args)
	pod, r, err := s.wanted(args.Pod)
	if err != nil {
		// Such a pod fits nowhere, and evicting others doesn't help it.
		s.Metrics.Denied(component, "BadRequest")
		return nodes.none(err.Error()), err
	}
	if r == nil {
		return nodes.all(), nil
	}
	for range races {
		fits, result, most := s.verdicts(pod, r, nodes)
		if len(fits) == 0 {
			s.Metrics.Denied(component, most.String())
			if reserve {
				s.refusals.put(args.Pod)
			}
			return result, fmt.Errorf("pod %s/%s: no node of %d can take it, mostly: %s", pod.Namespace, pod.Name, nodes.len(), most.Brief())
		}
		if !reserve {
			return result, nil
		}
		_, err := s.reserve(pod, r, best(fits), owner(pod.UID))
		switch {
		case err == nil:
			s.holds.put(pod.UID, s.Clock())
			s.refusals.take(args.Pod.UID)
			return result, nil
		case errors.Is(err, engine.ErrNoFit):
			// Somebody was faster: the next look at the cluster knows it.
			s.Metrics.Conflict(component)
		default:
			return nodes.none(err.Error()), err
		}
	}
	s.Metrics.Denied(component, "Races")
	err = fmt.Errorf("pod %s/%s: others were faster %d times: it is tried again", pod.Namespace, pod.Name, races)
	return nodes.later(err.Error()), err
}

// races is how often a call looks again after somebody else was given what it had seen. A
// call must end: kube-scheduler waits for it, and holds all other pods meanwhile.
const races = 5

// fitting is a node that can take the pod.
type fitting struct {
	name  string
	score int64
}

// best is the one with the highest score, of equals the first by name.
func best(fits []fitting) string {
	return slices.MaxFunc(fits, func(a, b fitting) int {
		if a.score != b.score {
			return int(a.score - b.score)
		}
		if a.name < b.name {
			return 1
		}
		return -1
	}).name
}

// verdicts judges all candidates; most is the reason that most of the refused gave.
func (s *Server) verdicts(pod *scheduler.Pod, r *request.Request, nodes nodeList) (fits []fitting, result *extenderv1.ExtenderFilterResult, most engine.Code) {
	evaluation := s.Engine.Evaluate(s.Engine.Snapshot(), pod, r)
	if err := evaluation.Err(); err != nil {
		return nil, nodes.none(err.Error()), engine.NodeUnregistered
	}
	failed, unresolvable := extenderv1.FailedNodesMap{}, extenderv1.FailedNodesMap{}
	count := map[engine.Code]int{}
	ahead := s.ahead(pod)
	for name := range nodes.names() {
		v := evaluation.Verdict(name)
		if others := ahead[name]; v.Fits && len(others) > 0 {
			v = evaluation.On(s.nominate(evaluation.Snapshot().Overlay(), name, others), name)
		}
		if v.Fits {
			fits = append(fits, fitting{name, v.Score})
			continue
		}
		code := v.Reason()
		if count[code]++; count[code] > count[most] || count[code] == count[most] && code > most {
			most = code
		}
		if reasons := v.Reasons(); reasons.Evictable() {
			failed[name] = v.Text()
		} else {
			unresolvable[name] = v.Text()
		}
	}
	passed := make([]string, len(fits))
	for i, f := range fits {
		passed[i] = f.name
	}
	return fits, nodes.answer(passed, failed, unresolvable), most
}

// prioritize answers how good the nodes are: 10 for the best one alone, so that the
// scheduler takes the one that filter has reserved if nothing else speaks against it.
func (s *Server) prioritize(_ context.Context, args *extenderv1.ExtenderArgs) (*extenderv1.HostPriorityList, error) {
	nodes := candidates(args)
	list := make(extenderv1.HostPriorityList, 0, nodes.len())
	pod, r, err := s.wanted(args.Pod)
	if err != nil || r == nil {
		for name := range nodes.names() {
			list = append(list, extenderv1.HostPriority{Host: name})
		}
		return &list, err
	}
	evaluation := s.Engine.Evaluate(s.Engine.Snapshot(), pod, r)
	var fits []fitting
	for name := range nodes.names() {
		list = append(list, extenderv1.HostPriority{Host: name})
		if v := evaluation.Verdict(name); v.Fits {
			fits = append(fits, fitting{name, v.Score})
		}
	}
	if len(fits) == 0 {
		return &list, nil
	}
	first := best(fits)
	if reserved := s.Engine.AllocatedNode(pod.UID); reserved != "" && slices.ContainsFunc(fits, func(f fitting) bool { return f.name == reserved }) {
		first = reserved
	}
	low, high := fits[0].score, fits[0].score
	for _, f := range fits {
		low, high = min(low, f.score), max(high, f.score)
	}
	scores := make(map[string]int64, len(fits))
	for _, f := range fits {
		scores[f.name] = 0
		if high > low {
			scores[f.name] = (extenderv1.MaxExtenderPriority - 1) * (f.score - low) / (high - low)
		}
	}
	scores[first] = extenderv1.MaxExtenderPriority
	for i := range list {
		list[i].Score = scores[list[i].Host]
	}
	return &list, nil
}
