// Package request reads what a pod asks for: HAMi's five resources, gpu-manager's two,
// and the annotations that choose GPUs.
//
//	r, err := request.FromPod(pod, request.DefaultOptions())
//	switch {
//	case err != nil: // *Error: for the pod's author
//	case r == nil:   // the pod asks for no GPU
//	}
//
// A container is read by one of two profiles, never by both. Its limits count, or its
// requests where only those are set (package kube's doing).
//
// # HAMi's resources
//
//	nvidia.com/gpu                how many GPUs, 1 to 16; 0: nothing is asked for
//	nvidia.com/gpumem             memory of each, in MiB (or units of Options.MemoryFactor MiB)
//	nvidia.com/gpumem-percentage  or in percent of each GPU's, 1 to 100
//	nvidia.com/gpucores           compute time of each, in percent, 0 to 100; 0: not limited
//	nvidia.com/priority           0 high, 1
//
// The webhook writes defaults into the pod; a pod that went around it is read as if it
// hadn't: a container that says only how much gets Options.DefaultCount GPUs; one that
// says nothing of memory Options.DefaultMemoryMiB, or all of it; one that has all memory
// of a GPU and says nothing of cores 100 of them, for nobody else has room there.
//
// HAMi clamps more than 100 cores or percent to 100, takes memory where both ways are
// said, reads 0 of memory as nothing said, and takes a container whose memory is too large
// a number for one without GPUs. Here all of these are refused, as is everything
// negative or no whole number, with what to write in place of it: each is a mistake that
// would show much later, as a program that runs with less or more than was meant. 0 of
// everything is no mistake but a chart's way to say "none".
//
// 100 cores are a GPU alone: see Container.Exclusive.
//
// # gpu-manager's resources
//
//	tencent.com/vcuda-core    1 to 99: a part of a GPU; 100: a GPU; multiples of it: GPUs
//	tencent.com/vcuda-memory  in blocks of 256 MiB: of a part, required; of whole GPUs, of
//	                          all of them together, and all of their memory where it is left out
//
// A container that asks for MIG devices beside GPUs, in either way, is refused, as it would
// be on the node.
//
// # Annotations
//
// They choose among GPUs and policies: see Rules. One that can't be read is an error, and
// of a pod that asks for nothing none is looked at. Soft ceilings of compute time
// (grant.CoreCeiling) are the node's to read; a malformed one is refused here already.
//
// It imports choose, grant and scheduler, and is called by everything that has a pod in hand.
package request
