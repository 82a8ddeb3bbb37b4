// Package versions runs the scheduler on API servers that emulate the older versions of Kubernetes which gpuslice supports.
package versions
