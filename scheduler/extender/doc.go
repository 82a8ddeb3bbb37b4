// Package extender implements kube-scheduler's extender protocol (HTTP), for clusters where
// kube-scheduler cannot be replaced. New and Server.Handler answer the calls, Run is the process.
//
// Filter reserves the best node, because kube-scheduler binds in the background and would show
// the same free GPU to the next pod. Bind reserves again on the node that kube-scheduler chose,
// and writes node and grant in one Binding: no pod is bound without its grant.
package extender

// What the plugin does and this protocol cannot do:
//   - A group whose pods are not all created yet reserves GPUs. Filter cannot reject its pods:
//     nothing would retry them when the last one is created.
//   - Of two groups that each reserved a part of the GPUs, both give up after the group timeout.
//   - kube-scheduler calls /preempt only for nodes where its own simulation helps. That
//     simulation knows only the counted resource (nvidia.com/gpu), not memory or cores.
//   - There are no queueing hints: see requeue.go.
