// Package cdispec writes the node's CDI specs: gpuslice.io/slice, the operator's slices
// for docker run --device, podman run --device and nerdctl; and nvidia.com/gpu, the
// driver's files, where no toolkit of NVIDIA's has written it (directory nvdriver).
//
//	Driver    writes nvidia.com/gpu, unless somebody else has: then that one is used
//	Plan      which GPUs each slice gets: pure
//	Slices    makes the slices' directories and writes their spec
//
// A spec is written by CDI's own library, by a rename, with the lowest version that has
// what it says (old runtimes refuse newer ones), and only where it differs from what is
// there: all of it may be done again at any time.
//
// It imports grant, oci, oci/slice and oci/request. Command gpuslice calls it.
package cdispec
