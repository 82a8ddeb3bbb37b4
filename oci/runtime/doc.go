// Package ociruntime is gpuslice-runtime, an OCI runtime in front of another one. Without
// Kubernetes it reads a container's GPU request, reserves shares in the ledger, edits config.json
// and execs the low-level runtime (runc, crun). With Kubernetes, in front of NVIDIA's runtime, it
// is the barrier that keeps GPUs closed without a grant (pod.go). Other commands are passed on.
// An error refuses the container; it goes to stderr and to --log in runc's format, so that docker,
// podman and kubectl show it.
//
// # Release
//
// A claim ends with its container, even if processes are killed. Four events release it: an error
// after the claim, delete (after the low-level runtime has ended), the poststop hook in the
// container's config, and the next creation, which releases orphans. None of them does while a
// process of the container exists. A claim has a nonce, so that a late release does not affect a
// newer claim of the same ID.
//
// # Hooks
//
// `gpuslice-runtime hook precreate|createRuntime|poststop` is for runtimes that support only
// hooks (install/hooks.d). precreate is podman's and does what create does. createRuntime can't
// change a container: it refuses one that has a GPU without limits, or requests a share.
//
// # Dependencies
//
// The program starts several times per container. It has no cgo and few packages
// (TestLinkedWithLittle); `gpuslice gpus` queries the driver for it. BenchmarkCreate measures it.
package ociruntime
