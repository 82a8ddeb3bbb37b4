// Package process tests `gpuslice run` on this machine: commands without a container, the simulated driver as the GPU, and the
// limiter in them.
package process
