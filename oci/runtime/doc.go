// Package ociruntime is gpuslice-runtime, an OCI runtime in front of another one. Without Kubernetes
// it reads a container's request, reserves GPU shares, edits config.json and execs the low-level
// runtime (runc, crun). With Kubernetes, in front of NVIDIA's runtime, it keeps GPUs closed without a
// grant (pod.go). For runtimes with hooks only there is `gpuslice-runtime hook` (install/hooks.d).
//
// A claim ends with its container, even if processes are killed. An error after the claim, delete,
// the poststop hook and the next creation (for orphans) release it, but never while a process of the
// container exists. The nonce protects a newer claim of the same container ID.
//
// The program starts several times per container: no cgo, few packages (TestLinkedWithLittle,
// BenchmarkCreate).
package ociruntime
