// Package e2e tests gpuslice on a real Kubernetes (package kube): `make e2e`. One
// cluster, of one node with eight simulated GPUs, serves all tests, one after another;
// each has a namespace of its own and has to leave every GPU free. `make e2e-nodes` adds
// a node.
//
// What a container may use is asked inside it, not read from its spec.
package e2e
