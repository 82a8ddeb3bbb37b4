package extender

import (
	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

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
