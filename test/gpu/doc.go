// Package gpu runs what `make gpu-test` runs on a real GPU, on a simulated one: not a minute of a GPU is lost to a mistake
// in the scripts. docs/GPU-TEST.md describes them.
package gpu
