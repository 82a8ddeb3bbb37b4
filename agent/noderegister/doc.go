// Package noderegister tells schedulers and people of a node's GPUs, by the annotations
// and labels of its Node object.
//
// Nothing on the node depends on it: grants are guarded, and the kubelet is told of
// devices, without an API server.
//
//	client, err := noderegister.NewClient(noderegister.ClientConfig{Kubeconfig: path, UserAgent: "gpuslice-agent/1.0"})
//	publisher, err := noderegister.New(noderegister.Config{
//		Client: client, NodeName: name, Node: offered, Changed: changed, Log: log,
//	})
//	publisher.Run(ctx)
//
// # Files
//
//   - device.go, options.go: what is told, and how
//   - register.go: HAMi's annotations
//   - gpus.go: ours
//   - handshake.go: HAMi's question whether the agent lives
//   - labels.go, tencent.go: the labels
//   - client.go: the API server
//   - publisher.go, write.go, difference.go, report.go: when, what, and what went wrong
//
// # Annotations
//
// hami.io/node-nvidia-register has the devices, as HAMi's own device plugin writes them.
// HAMi's schedulers are of two kinds. Current ones (2.10) read it whenever it changes,
// and otherwise go by the node's allocatable devices. Older ones read it only when their
// question in hami.io/node-handshake has been answered, and drop the devices of a node
// that leaves it open for 60 seconds. Answering costs two writes a node and half-minute,
// theirs and ours, which the first kind can do without: HandshakeIgnore.
//
// An agent that is stopped writes all its devices as not healthy, which the first kind
// acts upon at once, and an overdue question, which the second kind does ("Deleted" would
// not do: to them it says that the devices are dropped already). The annotation stays:
// without it the oldest schedulers would keep the devices that they know. An agent that
// is killed is found out by the first kind when the kubelet says that the node has no
// devices, by the second after a minute.
//
// gpuslice.io/node-gpus has the same devices for our scheduler, with what HAMi's has no
// words for. It reads HAMi's where ours is absent, so that no order of upgrades matters. An
// agent that is stopped removes it: the node may be another's to register from then on.
//
// # Labels
//
// All begin with gpuslice.io/gpu. and are of the GPUs that are offered, healthy or not:
//
//	count                        4
//	model                        NVIDIA-H200; "mixed" where they differ
//	model.<model>                how many there are of each
//	memory                       MiB that each GPU has at least, before scaling
//	replicas                     containers that each GPU takes at least
//	mode                         hami-core, mig; "mixed"
//	driver-version               550.54.15, and .major, .minor
//	cuda-version                 12.4, and .major, .minor: the newest that the driver runs
//	compute-capability           9.0, and .major, .minor: what each GPU has at least
//	nvlink                       all, some, none: the pairs of GPUs that are linked
//	mig.capable                  true, if all are known to be
//	mig.enabled                  true, false; "mixed"
//	mig.strategy                 none, single, mixed
//	mig-<profile>                how many MIG devices there are of each
//
// So a selector never gets a GPU that it didn't mean: numbers are what every GPU has,
// and "mixed" matches no model. A pod that is content with a node that has some H200
// selects model.NVIDIA-H200. What is unknown has no label.
//
// gaia.tencent.com/gpu-model is gpu-manager's, on request. Where the GPUs differ it is
// left out: a quota by model can't be right there.
//
// # Writing
//
// A look reads the Node object's metadata and writes what differs, if anything. It
// remembers nothing of what was written before, so that nothing is lost with a patch
// that failed, and what others have changed or removed is repaired. Removed are keys
// that are no longer wanted and that the API server has us down for as their last
// writer (managedFields); all else is left alone.
//
// A look every half-minute is a read of a few KB out of the API server's cache: of the
// node's metadata alone, without the status that makes up most of a Node. A watch would
// cost one open connection a node and be woken by each of the kubelet's updates, for
// what may as well wait; and needs more rights.
//
// # The client
//
// client-go's metadata client knows no types but metadata, which is all that is needed.
// It makes the agent 5 MB bigger on disk and 6 MB in memory. The typed client for core/v1
// would take another 19 and 9, the whole clientset 21 and 10, for types of pods and
// services that are registered at start. A bare rest.Interface saves 0.1 of either.
//
// It imports gpu, and is called by the agent.
package noderegister
