// Package attacks attacks gpuslice as a hostile tenant does, on real containerd and
// dockerd with simulated GPUs. It is run by `make test-attacks`. Each test names what
// the tenant tries and states the outcome that docs/SECURITY.md promises.
package attacks
