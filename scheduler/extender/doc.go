// Package extender is the scheduler's door for clusters whose kube-scheduler can't be
// replaced: the HTTP calls of kube-scheduler's extender protocol.
//
//	POST /filter           the nodes that can take the pod, and of each other one why not
//	POST /prioritize       how good they are, 0 to 10
//	POST /bind             books, and binds the pod with its grant
//	POST /preempt          whom to evict on which node, by memory and cores too
//	POST /filter-dryrun    filter without a trace, for autoscalers' simulations
//	GET  /version, /healthz, /readyz, /metrics, /debug/state
//
// gpu-admission's paths are served too: /scheduler/predicates, /scheduler/priorities.
//
// # What is booked when
//
// Filter chooses the best node and reserves the pod's GPUs there for Options.Hold. Without
// it, two pods that are filtered one after the other would both be shown the last free
// GPU, for kube-scheduler binds the first one in the background. All nodes that fit are
// answered, since others (taints, other extenders' weights) may prefer another one; bind
// books on the node that it is told, whichever that is, on the newest state: it alone gives
// GPUs away, and refuses a pod that finds them taken. A pod that is filtered again, by the
// same scheduler or another, is judged without its own reservation.
//
// Bind is one call of the API server: the annotations that carry the grant are in the
// Binding, and the API server writes them and the node in one step. There is no moment at which a
// pod is bound without its grant, or has one without being bound.
//
// Filter leaves the room that pods were evicted for to those that wait for it, unless the pod
// is more important. Preempt spares pods whose PodDisruptionBudget allows no eviction before
// all others, and counts the rest, as kube-scheduler does.
//
// # Groups
//
// A pod's bind waits for those of the others of its group, for Options.GangTimeout, with its GPUs held.
// The plugin does more, since it can have pods tried again, which this protocol can't:
//
//   - it holds nothing for a group of which pods are still to be made. Filter refuses no pod for that: nobody
//     would try it again when the last one is made;
//   - of two groups that have half of their GPUs each, the one that goes before the other gets all. Here both
//     give up after GangTimeout, and kube-scheduler's backoff decides;
//   - a pod that fails gives back at once what its group holds.
//
// With both, pods that come once some of the group are bound wait for nobody.
//
// # The protocol's limits
//
// kube-scheduler asks /preempt only after its own simulation found nodes where evicting
// somebody helps, and that simulation knows the counted resource (nvidia.com/gpu) alone,
// and only if the extender's configuration does not have it ignored. A pod that lacks memory
// or cores on nodes with replicas left is never asked about: use the framework plugin
// for that. Pods that an extender refused are tried again at any event, there are no hints;
// where kube-scheduler knew of an event before this process did, a pod that was refused for it is changed
// (gpuslice.io/woken), which is an event of its own.
package extender
