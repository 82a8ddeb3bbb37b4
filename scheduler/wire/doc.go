// Package wire reads and writes the annotations of nodes and pods: ours, and HAMi's in
// all of its forms, so that HAMi's scheduler drives our nodes and, with a limit, our
// scheduler HAMi's.
//
// The limit: HAMi's device plugin doesn't know which pod the kubelet asks for, and serves
// the one of its node that is in the phase "allocating". HAMi's scheduler therefore binds
// one pod at a time to a node, under the node's annotation hami.io/mutex.lock. Ours does
// not take that lock: of two pods with GPUs that are bound to one HAMi node within the
// time of an allocation, each may be given what was meant for the other. Our own nodes go
// by the pod, and need no lock.
//
// What a node says is its GPUs (DecodeNode); what a pod says is what it was given
// (DecodePod). Before a pod is bound, the scheduler writes Annotations on it, in one patch.
// Owned are those that nobody else may write.
//
// # gpuslice.io/node-gpus
//
//	{"version":1,
//	 "gpus":[{"uuid":"GPU-…","model":"NVIDIA H200","index":0,"numa":0,"memoryMiB":143771,
//	           "cores":100,"slots":10,"mode":"hami-core","healthy":true},…],
//	 "links":[[0,1850],[1850,0]]}
//
// It says what HAMi's annotation can't: which NUMA nodes are not known ("numa" is absent),
// and, in the same write as the GPUs, their links.
// memoryMiB, cores and slots are what may be given out, scaling included; the model is as
// HAMi registers it, so that nvidia.com/use-gputype means the same by both. Links are
// HAMi's numbers (gpu.Pair.Score), absent where not known. It goes before HAMi's where it
// is well formed. A reader passes over fields that it doesn't know.
//
// # HAMi's register
//
// hami.io/node-nvidia-register is JSON that leaves zeros out (a device without "health" is
// not healthy, one without "numa" is at node 0), or the older lists of 7 or 9 fields.
// hami.io/node-nvidia-score has the links. hami.io/device-cordon is an operator's, and goes
// with either form.
//
// It imports grant and scheduler, and is called by package engine and those who write
// patches.
package wire
