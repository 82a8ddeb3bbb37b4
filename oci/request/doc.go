// Package request is the request of a container that is started without Kubernetes, by
// docker, podman, nerdctl or ctr: what the container asks for ([FromContainer]), what
// the operator lets it have ([Config], [Load]), and which GPUs it gets ([Choose]).
//
//	config, err := request.Load(request.DefaultPath)
//	request, err := request.FromContainer(spec.Process.Env, spec.Annotations, config)
//	if request == nil { the container gets no GPU }
//	shares, err := request.Choose(request, GPUs, snapshot.GPUs, config)
//	book the shares in the ledger; if somebody was faster (grant.ErrOverbooked), choose again
//
// # What a container can say
//
//	variable             annotation            meaning
//	GPUSLICE_MEMORY      gpuslice.io/memory    device memory of each GPU: 8GiB, 8g, 8000m, 25% (see ParseSize)
//	GPUSLICE_CORES       gpuslice.io/cores     compute time of each GPU in percent: 30, 30%
//	GPUSLICE_DEVICES     gpuslice.io/devices   which GPUs: 2, all, device=0,1 (see ParseDevices); 1 if not said
//	GPUSLICE_PRIORITY    gpuslice.io/priority  0 (others stand back; only where the operator lets it) or 1
//	GPUSLICE_SLICE       gpuslice.io/slice     memory, cores, priority and maybe devices by a name of the operator's
//	                     gpuslice.io/grant     the shares themselves (grant.DecodeGrant)
//
// HAMi's variables are wishes too: CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_SM_LIMIT of
// every GPU, with _<i> of the container's i-th, counted from 0. Where the operator
// allows whole GPUs, NVIDIA_VISIBLE_DEVICES of a container that says none of these asks
// for the GPUs that it names, whole. An empty value is as if it was not there.
//
// An annotation wins over the variables of the same meaning. Of a slice's memory, cores
// and priority none can be said beside it. What contradicts itself otherwise (GPUSLICE_MEMORY
// and CUDA_DEVICE_MEMORY_LIMIT that differ, a variable that is there twice with two
// values) is refused, because programs differ on which of them counts.
//
// What a container says is a tenant's word. Nothing in it lifts the operator's maximum,
// opens a GPU that the operator keeps for others, or makes a priority high: that holds
// for a grant in an annotation as well, which needs no signature for this reason.
//
// # What it may import
//
// grant. It is called by the runtime wrapper and by the CDI generator. All of it is pure
// but for Load, which reads one file.
package request
