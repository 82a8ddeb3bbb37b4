package extender

import (
	"iter"

	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// nodeList is a call's candidates: names, from a scheduler that calls with
// nodeCacheCapable, or else objects. The answer has them in the same form.
type nodeList struct {
	list    []string
	objects *v1.NodeList
}

func candidates(args *extenderv1.ExtenderArgs) nodeList {
	switch {
	case args.NodeNames != nil:
		return nodeList{list: *args.NodeNames}
	case args.Nodes != nil:
		return nodeList{objects: args.Nodes}
	}
	return nodeList{}
}

func (n nodeList) len() int {
	if n.objects != nil {
		return len(n.objects.Items)
	}
	return len(n.list)
}

func (n nodeList) names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, name := range n.list {
			if !yield(name) {
				return
			}
		}
		if n.objects == nil {
			return
		}
		for i := range n.objects.Items {
			if !yield(n.objects.Items[i].Name) {
				return
			}
		}
	}
}

// answer says which have passed, in the order in which they were asked for.
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

// all says that every candidate has passed.
func (n nodeList) all() *extenderv1.ExtenderFilterResult {
	if n.objects != nil {
		return &extenderv1.ExtenderFilterResult{Nodes: n.objects}
	}
	names := n.list
	if names == nil {
		names = []string{}
	}
	return &extenderv1.ExtenderFilterResult{NodeNames: &names}
}

// none says of every candidate the same, which evicting pods does not change.
func (n nodeList) none(why string) *extenderv1.ExtenderFilterResult {
	unresolvable := make(extenderv1.FailedNodesMap, n.len())
	for name := range n.names() {
		unresolvable[name] = why
	}
	return n.answer([]string{}, extenderv1.FailedNodesMap{}, unresolvable)
}

// later says of every candidate the same, which holds for this moment alone.
func (n nodeList) later(why string) *extenderv1.ExtenderFilterResult {
	failed := make(extenderv1.FailedNodesMap, n.len())
	for name := range n.names() {
		failed[name] = why
	}
	return n.answer([]string{}, failed, extenderv1.FailedNodesMap{})
}
