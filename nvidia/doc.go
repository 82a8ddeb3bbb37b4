// Package gpu says what a node has: its GPUs, read by NVML.
//
// [Discover] reads once; a [Cache] keeps what was read last, so that nobody who
// creates containers ever waits for NVML. Both take go-nvml's nvml.Interface, so
// that the real driver, the simulated one (testdata/simdriver) and go-nvml's mocks
// do alike:
//
//	cache := gpu.NewCache(nvml.New(), gpu.CacheOptions{Interval: 30 * time.Second})
//	go cache.Run(ctx)                     // the one owner: opens NVML, reads, closes it
//	GPU, ok := cache.Node().GPU(uuid)   // any goroutine, no NVML
//
// A cache knows each GPU's [Health] and tells of changes:
//
//	changed, cancel := cache.Subscribe()  // a value after each change, GPUs or health
//	health, known := cache.Health(uuid)   // also of a GPU that is gone
//
// An XID makes a GPU Unhealthy within a fraction of a second; XIDs that come in the
// moment in which NVML is opened again, because a GPU is missing, are not heard.
//
// A GPU in MIG mode has [MIGDevice]s, which come and go between readings; what of a
// node is to be offered is a [Partition] of it, by a [MIGStrategy]. The health of MIG
// devices is told by their UUIDs, like that of GPUs.
//
// How GPUs are connected is a [Topology], from NVML ([DiscoverTopology], or a cache
// that is told to) or from what nvidia-smi topo -m prints ([ParseTopology]).
//
// A GPU that can't be read is a [Fault] of the node, never left out in silence. A
// refresh that fails keeps the last node that was read and says so.
//
// # Files
//
//   - gpu.go: the types Node, GPU and Fault
//   - discover.go: NVML opened, the node read, NVML closed
//   - read.go: one GPU, one function a fact
//   - errors.go: what an NVML error means and what to do
//   - numa.go: the NUMA node, by sysfs or NVML
//   - cache.go: the snapshot and its owner
//   - watch.go: what the owner does between readings: events, who is told
//   - events.go: NVML's event set
//   - topology.go: the pairs of GPUs: level, NVLinks, score
//   - topo_nvml.go, topo_text.go: the topology by NVML and by nvidia-smi's text
//   - health.go, mighealth.go: what makes a GPU, a MIG device unhealthy and well again
//   - xids.go: which XIDs are a program's, and which need a reset
//   - mig.go, migread.go: MIG devices, and how NVML tells of them
//   - partition.go: what a node offers, by the MIG strategy
//
// It imports nothing of ours. It is called by the agent and the CLI; its types are
// read by grant and the schedulers.
package nvidia
