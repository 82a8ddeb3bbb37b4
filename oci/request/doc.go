// Package request decides which GPU shares a container without Kubernetes (docker, podman,
// nerdctl, ctr) gets. [Load] reads the operator's config, [FromContainer] reads the request from
// the container's variables and annotations, [Choose] selects GPUs. All are pure except Load.
//
//	variable             annotation            meaning
//	GPUSLICE_MEMORY      gpuslice.io/memory    device memory of each GPU: 8GiB, 8g, 8000m, 25% (ParseSize)
//	GPUSLICE_CORES       gpuslice.io/cores     compute time of each GPU in percent: 30, 30%
//	GPUSLICE_DEVICES     gpuslice.io/devices   which GPUs: 2, all, device=0,1 (ParseDevices); default 1
//	GPUSLICE_PRIORITY    gpuslice.io/priority  0 (high, if the operator allows it) or 1
//	GPUSLICE_SLICE       gpuslice.io/slice     the name of an operator's slice: memory, cores, priority and maybe devices
//	                     gpuslice.io/grant     the shares themselves (grant.DecodeGrant)
//
// HAMi's variables count too: CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_SM_LIMIT for every GPU,
// with _<i> for the container's GPU i (from 0). If the operator allows whole GPUs and nothing else
// is requested, NVIDIA_VISIBLE_DEVICES requests whole GPUs. An empty value counts as not set.
//
// An annotation overrides variables of the same meaning. Other contradictions (two values for one
// variable, GPUSLICE_MEMORY and CUDA_DEVICE_MEMORY_LIMIT that differ, a slice and an amount) are
// rejected, because programs differ in which value they use.
//
// A tenant writes the request, so nothing in it exceeds the operator's maximum, opens a GPU that
// the operator excludes, or raises the priority. That is why a grant here needs no signature.
package request
