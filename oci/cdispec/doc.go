// Package cdispec writes the node's CDI specs: gpuslice.io/slice for the operator's slices, and nvidia.com/gpu
// if NVIDIA's toolkit has not written it. A spec has the lowest sufficient version, because old runtimes
// reject newer ones. `gpuslice cdi generate` calls it.
package cdispec
