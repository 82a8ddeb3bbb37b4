// Package plugin is the door for kube-scheduler's scheduling framework: it makes of
// kube-scheduler a scheduler that knows GPUs. It imports the framework's interfaces
// (k8s.io/kube-scheduler) and nothing of k8s.io/kubernetes; cmd/gpuslice-scheduler puts
// both together.
//
//	PreFilter   reads the request; judges all nodes at once (package engine)
//	Filter      looks the node's verdict up
//	AddPod, RemovePod  what would be: kube-scheduler's own preemption works for memory and cores
//	Score       the node policy, stretched over the candidates
//	Reserve     books the GPUs, Unreserve gives them back
//	Permit      a group's pods wait for each other
//	PreBind     annotations that are not the scheduler's go; with Annotate: Patch ours are written
//	Bind        books once more, binds and writes the grant in one transaction (kube.Bind)
//	PostBind    finds out whether another plugin binds instead, which must not be
//	PostFilter  says why, with numbers, and settles which group goes first
//
// # What is believed
//
// A pod that waits is believed nothing that only the scheduler may write (wire.Owned):
// what it brings of them is overwritten or removed before it is bound, whoever wrote it.
// The engine holds what annotations of bound pods say.
//
// # The rest of kube-scheduler
//
// Memory, cores and the like are in no node's allocatable: NodeResourcesFit would find
// every node lacking and has to be told to ignore them (install/scheduler/config.yaml; the
// count of GPUs is in allocatable and stays its business). The kubelet takes resources
// that its node doesn't have out of a pod before it admits it (kubernetes 1.36,
// pkg/kubelet/lifecycle/predicate.go: removeMissingExtendedResources), so that they need
// not be advertised anywhere.
//
// There is no PreEnqueue: a pod that it holds back gets no event, and its author would
// never read why. A request that makes no sense is refused in PreFilter, and looked at
// again only when the pod itself changes.
package plugin
