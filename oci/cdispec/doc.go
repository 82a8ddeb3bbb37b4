// Package cdispec writes the node's CDI specs: gpuslice.io/slice for the operator's slices, and
// nvidia.com/gpu if NVIDIA's toolkit has not written it (package nvdriver generates it). A spec has
// the lowest sufficient version, because old runtimes reject newer ones, and is written only if it
// differs.
package cdispec
