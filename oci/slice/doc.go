// Package slice is what stands behind a CDI device gpuslice.io/slice=NAME: a fixed share
// of fixed GPUs that one container at a time may have, with plain runc or crun.
//
// A CDI spec is static, and a share isn't: who has it is decided when a container is
// made. So each slice has a directory, made beforehand (package cdispec), whose limits and
// usage file the spec mounts,
//
//	<state>/slices/<name>/slice.json     the slice, as hooks read it
//	<state>/slices/<name>/limits, usage  the limiter's two files
//	<state>/slices/<name>/claimed        there from a claim until the files are new ones
//	<state>/slices/lock                  flock'ed by whoever claims, gives back or changes one
//
// and the spec names two hooks, which [Main] is:
//
//   - createRuntime: claim. The container's mounts are made, and its program doesn't run
//     yet. The hook looks whether the limiter's files are where they have to be in the
//     container, books the share in the node's ledger, and puts the slice's two files
//     into the claim's directory too, by hard links. Whatever is not as it has to be, a slice that is
//     taken and a GPU that is full refuse the container.
//   - poststop: release. The slice gets new files, and the share is given back.
//
// Why this is safe: the device nodes come with the limits, in one device of one spec. A
// runtime that ignores hooks (none that runs containers for docker, podman or containerd
// does) gives the slice's limits all the same, and several containers have them
// together; what is lost is the booking. Without this program no container is made, for
// its hook is missing; after a reboot none is either, as the files to mount are gone.
//
// It imports grant, limiter, oci and claimed. Command gpuslice-runtime calls [Main] for its
// command "slice".
package slice
