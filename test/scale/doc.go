// Command scale measures the components of the scheduler end to end, with a real etcd and kube-apiserver and
// with nodes that are only objects: how many pods a second are bound. `make bench-scheduler` runs it. It
// prints a table, in Markdown.
//
// Every row is 1,000 nodes with 8 GPUs each (-nodes, -pods change that) and pods that are
// there before the scheduler is started, so that making them isn't measured. The rate is the
// pods but one by the time from the first bind to the last, as a watch sees them. The processor
// time of a pod is of the same span: on a busy machine it varies less than the rate.
//
//	no GPUs           gpuslice-scheduler, pods without GPUs: the ceiling of kube-scheduler
//	                   and the API server on this machine
//	no GPUs, 10 %      the same with percentageOfNodesToScore: 10
//	plugin, Binding    the same with a GPU's part each: the grant is written with the bind
//	plugin, Patch      the grant is written before the bind, by another plugin
//	extender           the stock kube-scheduler with `gpuslice-scheduler extender`
//	extender, 10 %    the same with percentageOfNodesToScore: 10
//	extender, N calls  only the extender: N callers, each filter, prioritize and bind
//
// etcd, the API server, the schedulers and this program share the machine's cores.
//
// -rows chooses rows, and -rounds repeats them one after the other, so that ratios are of rows
// beside each other.
//
// After each row the pods' annotations are added up by GPU: one that holds more than it
// has is an error.
package main
