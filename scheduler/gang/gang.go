// Package gang decides to which group a pod belongs, whether enough of a group's pods exist, and which of two groups
// comes first. Package podgroups reads the objects that have the minimum. The plugin and the extender use it, and
// package kube, which converts pods.
package gang

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/api"
)

// API is how a pod names its group, and the API of the PodGroup objects that have the minimum.
type API uint8

const (
	Coscheduling API = iota // the label api.LabelGroup
	Volcano                 // the annotation api.AnnotationVolcanoGroup
	Kubernetes              // spec.schedulingGroup, 1.36
	APIs                    // how many there are
)

// Groups are the API groups of the PodGroup objects.
var Groups = [APIs]string{Coscheduling: "scheduling.x-k8s.io", Volcano: "scheduling.volcano.sh", Kubernetes: "scheduling.k8s.io"}

// Name identifies a group.
type Name struct {
	API             API
	Namespace, Name string
}

// String is unique among the groups of a cluster.
func (n Name) String() string {
	if n.API == Coscheduling {
		return n.Namespace + "/" + n.Name
	}
	return n.Namespace + "/" + n.Name + " (" + Groups[n.API] + ")"
}

// Of returns the pod's group; ok is false if there is none. Pods without GPUs can be in a group.
func Of(pod *v1.Pod) (name Name, ok bool) {
	name.Namespace = pod.Namespace
	switch group := pod.Spec.SchedulingGroup; {
	case group != nil && group.PodGroupName != nil && *group.PodGroupName != "":
		name.API, name.Name = Kubernetes, *group.PodGroupName
	case pod.Labels[api.LabelGroup] != "":
		name.API, name.Name = Coscheduling, pod.Labels[api.LabelGroup]
	default:
		name.API = Volcano
		name.Name = cmp.Or(pod.Annotations[api.AnnotationVolcanoGroup], pod.Annotations[api.AnnotationVolcanoGroupNew])
	}
	if name.Name == "" {
		return Name{}, false
	}
	return name, true
}

// index is the name of the index of pods by group.
const index = "group"

// Indexers is for the informer of pods.
var Indexers = cache.Indexers{index: func(object any) ([]string, error) {
	if pod, ok := object.(*v1.Pod); ok {
		if name, ok := Of(pod); ok {
			return []string{name.String()}, nil
		}
	}
	return nil, nil
}}

// Pods returns the pods of a group, from an index with Indexers.
func Pods(pods cache.Indexer, name Name) []*v1.Pod { return PodsOf(pods, name.String()) }

// PodsOf is Pods by Name.String.
func PodsOf(pods cache.Indexer, group string) []*v1.Pod {
	objects, err := pods.ByIndex(index, group)
	if err != nil {
		return nil
	}
	all := make([]*v1.Pod, 0, len(objects)+1)
	for _, object := range objects {
		if pod, ok := object.(*v1.Pod); ok {
			all = append(all, pod)
		}
	}
	return all
}

// Minimums finds the PodGroup of a group. *podgroups.Reader implements it.
type Minimums interface {
	Find(Name) (Spec, error)
}

// Spec is what a PodGroup demands.
type Spec struct {
	// Minimum is how many pods have to be placed together; less than 2: no demand.
	Minimum int
	// Timeout is how long placed pods wait for the others; 0: the scheduler's setting.
	Timeout time.Duration
}

// Group is the state of a group.
type Group struct {
	Name Name
	Spec
	Pods    []*v1.Pod
	Pending []*v1.Pod // not bound
	// Started: some are bound. Replacements of failed pods need not wait.
	Started bool
	// Err is why the minimum is not known.
	Err      error
	priority int32     // highest
	created  time.Time // oldest
}

// New ignores pods that ended. The annotation api.AnnotationGroupMin of any pod goes before the PodGroup.
func New(name Name, pods []*v1.Pod, minimums Minimums) *Group {
	g := &Group{Name: name}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
			continue
		}
		g.Pods = append(g.Pods, pod)
		if pod.Spec.NodeName == "" {
			g.Pending = append(g.Pending, pod)
		} else {
			g.Started = true
		}
		if n, err := strconv.Atoi(pod.Annotations[api.AnnotationGroupMin]); err == nil {
			g.Minimum = max(g.Minimum, n)
		}
		if p := pod.Spec.Priority; p != nil {
			g.priority = max(g.priority, *p)
		}
		if at := pod.CreationTimestamp.Time; g.created.IsZero() || at.Before(g.created) {
			g.created = at
		}
	}
	if g.Minimum == 0 {
		g.Spec, g.Err = minimums.Find(name)
	}
	return g
}

// MustWait reports whether a placed pod waits for others.
func (g *Group) MustWait() bool { return !g.Started && (g.Minimum > 1 || g.Err != nil) }

// Complete reports whether enough pods exist.
func (g *Group) Complete() bool { return g.Err == nil && len(g.Pods) >= g.Minimum }

// Incomplete returns why no pod of the group may be placed now; "" if pods may.
func (g *Group) Incomplete() string {
	switch {
	case !g.MustWait() || g.Complete():
		return ""
	case g.Err != nil:
		return fmt.Sprintf("group %s: it is not known how many pods must be scheduled together: %v", g.Name, g.Err)
	}
	return fmt.Sprintf("group %s has %d of the %d pods that must be scheduled together", g.Name, len(g.Pods), g.Minimum)
}

// Topology returns the label of nodes that all pods of the group need the same value of; "" for none.
func (g *Group) Topology() string {
	for _, pod := range g.Pods {
		if label := pod.Annotations[api.AnnotationGroupTopology]; label != "" {
			return label
		}
	}
	return ""
}

// Before compares priority, then age.
func (g *Group) Before(h *Group) bool {
	return cmp.Or(cmp.Compare(h.priority, g.priority), g.created.Compare(h.created), cmp.Compare(g.Name.String(), h.Name.String())) < 0
}
