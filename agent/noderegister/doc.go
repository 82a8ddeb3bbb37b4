// Package noderegister publishes a node's GPUs to schedulers, as annotations and labels of its
// Node object. Containers and the kubelet do not depend on it.
//
//	publisher, err := noderegister.New(noderegister.Config{Client: client, NodeName: name, Node: offered})
//	publisher.Run(ctx)
//
// # HAMi
//
// Current HAMi schedulers (2.10) read hami.io/node-nvidia-register when it changes, and otherwise
// use the node's allocatable devices. Older ones read it only after an answer in
// hami.io/node-handshake, and remove a node's devices after 60 seconds without one. A stopped agent
// therefore writes its devices as unhealthy, and an overdue request.
//
// # Labels
//
// The prefix is gpuslice.io/gpu., and all describe the offered GPUs:
//
//	count, model, mode           "mixed" if the GPUs differ
//	model.<model>                number of GPUs
//	memory, replicas             minimum per GPU; memory in MiB, before scaling
//	driver-version, cuda-version, compute-capability, each with .major and .minor
//	nvlink                       all, some, none
//	mig.capable, mig.enabled, mig.strategy
//	mig-<profile>                number of MIG devices
//
// gaia.tencent.com/gpu-model is gpu-manager's; it is omitted if the GPUs differ.
//
// # Writing
//
// Each interval reads the node's metadata from the API server's cache and writes the difference, so
// that failed patches and foreign changes are repaired. A watch would wake up at each of the
// kubelet's updates and require more rights. Unwanted keys are removed if the agent is their last
// writer (managedFields). The metadata client is used because typed clients would take 9 MB more
// memory or more.
package noderegister
