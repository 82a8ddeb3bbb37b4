package extender

import (
	"fmt"
	"net/http"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/defrag"
	"github.com/gpuslice/gpuslice/scheduler/engine"
)

// Objects returns all pods and nodes.
type Objects func() ([]*v1.Pod, []*v1.Node)

// annotationSafeToEvict is Cluster Autoscaler's: "false" forbids evictions.
const annotationSafeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"

func debugDefrag(e *engine.Engine, find Find, objects Objects, w http.ResponseWriter, r *http.Request) {
	namespace, name := r.URL.Query().Get("namespace"), r.URL.Query().Get("pod")
	if namespace == "" || name == "" {
		http.Error(w, "no pod given: use /debug/defrag?namespace=NAMESPACE&pod=POD", http.StatusBadRequest)
		return
	}
	pod, err := find(namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		http.Error(w, fmt.Sprintf("pod %s/%s not found among pending and running pods", namespace, name), http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	case pod.Node != "":
		writeJSON(w, defrag.Plan{Pod: namespace + "/" + name, Node: pod.Node})
		return
	}
	plan, err := defrag.Make(planInput(e, pod, objects))
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	writeJSON(w, plan)
}

// planInput has what the engine does not know: controllers, node affinity, taints and cordons. Other resources, pod
// affinity and volumes are not checked.
func planInput(e *engine.Engine, pending *scheduler.Pod, objects Objects) defrag.Input {
	pods, nodes := objects()
	byUID, byName := make(map[string]*v1.Pod, len(pods)), make(map[string]*v1.Node, len(nodes))
	in := defrag.Input{Engine: e, Pending: pending}
	for _, p := range pods {
		byUID[string(p.UID)] = p
		if p.Spec.NodeName != "" && e.AllocatedNode(string(p.UID)) != "" {
			in.Running = append(in.Running, convert.Pod(p))
		}
	}
	for _, n := range nodes {
		byName[n.Name] = n
	}
	in.Fixed = func(uid string) string { return fixed(byUID[uid]) }
	in.Allowed = func(uid, node string) bool { return allowed(byUID[uid], byName[node]) }
	return in
}

// fixed returns why the pod must not be evicted.
func fixed(p *v1.Pod) string {
	if p == nil {
		return "it is not known"
	}
	owner := metav1.GetControllerOf(p)
	switch {
	case p.DeletionTimestamp != nil:
		return "it ends already"
	case owner == nil:
		return "no controller creates it again"
	case owner.Kind == "DaemonSet" || owner.Kind == "Node":
		return "it belongs to its node"
	case p.Annotations[annotationSafeToEvict] == "false":
		return "its annotation " + annotationSafeToEvict + " forbids it"
	}
	return ""
}

func allowed(p *v1.Pod, n *v1.Node) bool {
	if p == nil || n == nil || n.Spec.Unschedulable {
		return false
	}
	_, tainted := corev1.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Spec.Tolerations,
		func(t *v1.Taint) bool { return t.Effect != v1.TaintEffectPreferNoSchedule }, false)
	matches, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n)
	return !tainted && matches && err == nil
}
