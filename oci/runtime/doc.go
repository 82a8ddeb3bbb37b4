// Package ociruntime is gpuslice-runtime: an OCI runtime in front of another one, for
// containers without Kubernetes. In front of NVIDIA's runtime, for containers of Kubernetes,
// it is the barrier that keeps GPUs closed without a grant (pod.go).
//
//	docker ──► containerd's shim ──► gpuslice-runtime create ──► exec runc create
//	                                 │ config.json: what the container asks for  (request)
//	                                 │ the node's ledger: which GPUs, booked    (grant)
//	                                 │ config.json: the edits, by a rename       (oci)
//
// # What it does
//
// It reads the command line as runc does ([Parse]) and passes every command on, by exec,
// to the first of the operator's low-level runtimes that is there. These get more:
//
//   - create, run and restore: the container's request is read from its variables and
//     annotations. With a request it gets GPUs, chosen by best fit and booked as one
//     claim of grant.OwnerRuntime, and the edits of package oci. Without one it gets none,
//     NVIDIA_VISIBLE_DEVICES or not, and is refused where it holds one that no edit takes back.
//     Any error refuses the container.
//   - create, run and restore of a container of Kubernetes: its variables are no request. If
//     the NRI plugin has limited it, the config is not changed, and NVIDIA's runtime creates it
//     if that injects its GPUs. NVIDIA's runtime also creates containers of exempt namespaces.
//     The low-level runtime creates all others, so that NVIDIA's never reads their requests.
//   - delete: run as a child; when it has ended, the claim is given back.
//
// What is refused is told as runc tells it: on stderr and in --log, in its format, with
// exit status 1. So docker, podman and kubectl show it.
//
// # Giving back
//
// A claim ends with its container, whoever is killed on the way. Four give it back, each
// of which may come first or not at all: an error after the claim, delete, the poststop
// hook that is written into the container's config, and the next creation, which sweeps
// what is gone. None does so while a process of the container is there: see package
// claimed. A claim is known by its nonce, so that none takes away another's of the same id.
//
// # Hooks
//
// `gpuslice-runtime hook precreate|createRuntime|poststop` is for runtimes that take
// hooks only: see hooks.go, and install/hooks.d for the files. precreate is podman's and
// does what create does. A createRuntime hook can't change a container: it refuses one
// that has a GPU without limits, or asks for a share in vain.
//
// # GPUs
//
// The agent's node.json says what GPUs there are. Where there is no agent, `gpuslice
// GPUs` asks the driver once a boot, and the answer is kept in the state directory.
//
// # What it may import
//
// grant, oci, oci/claimed, oci/slice, limiter; no cgo, so that it starts in a millisecond. It is called by
// cmd/gpuslice-runtime.
//
// # What takes its time
//
// Each container waits for it. To look at a type for the first time takes encoding/json longer
// than to read a config, and package os makes a poller for a small file: what is on the way of
// each creation goes by packages jsonread and rawfile. BenchmarkCreate measures it.
package ociruntime
