// Package oci says what a container gets: it turns a grant into edits of the
// container, and applies edits to an OCI runtime spec.
//
// # What it does
//
// [Edits] is a pure function of the shares that a container was granted, the
// node's [Settings] and the facts about the [Container]. It answers with CDI
// ContainerEdits, the one language of edits of this project: the NRI plugin
// translates them to an adjustment, the runtime wrapper applies them with
// [Apply]; neither decides anything. A container without a grant gets what
// [Void] says, unless [HasGPU] finds that it has a GPU already: then it is
// refused.
//
//	res, err := oci.Edits(shares, settings, container, registry)
//	if err != nil { refuse the container with this message }
//	oci.Populate(container.Dir, claim, settings)    // its limits and usage files
//	oci.PopulatePreload(container.Dir, container.Rootfs)    // where the image was seen
//	adjust with res.Edits, remove what res.Replaced.Mounts names
//
// What the edits hold:
//
//   - variables with HAMi's names and units (env.go), for people and for
//     programs that read them; the limiter believes the limits file only;
//   - the limiter's mounts (mounts.go): the library, its limits (read-only), its
//     usage file and, by the node's limiter mode and what the image has
//     (enforcement.go, rootfs.go), /etc/ld.so.preload, or its fronts at the place of
//     the driver's libraries (front.go), or both;
//   - the GPUs: either the edits of the CDI spec of nvidia.com/gpu, resolved
//     here by a [Registry] so that it works where the runtime drops CDI names,
//     or NVIDIA_VISIBLE_DEVICES for nodes with NVIDIA's runtime (devices.go).
//
// # What is always true
//
// A container never gets a GPU without its limits, nor starts silently without
// the GPU it was granted: what can't be done is an error that says what was
// tried and what to do. Ours win over what the user or the image set for the same
// variable or the same path. Nothing here asks NVML, an API server or a disk,
// but for what is named as an edge: the [Registry] (reads CDI specs, by its own
// goroutine), [Populate] and [InstallLibrary].
//
// What no edit can hold: a privileged container is root of its node (it has every
// device node already), and a program that finds the driver's functions past every
// loader runs without the limiter. An image that makes /.gpuslice a link into a volume
// can hide the limiter's files where mounts are ordered by depth, as NRI does;
// [Apply] mounts them last.
//
// # Files
//
//   - settings.go, container.go: what is given
//   - edits.go: the function; env.go, mounts.go, devices.go: its three parts
//   - enforcement.go, front.go, rootfs.go: how the limiter gets into the programs
//   - holds.go: GPUs that a container has or asks for without a grant
//   - merge.go, apply.go: edits put together, and put into an OCI spec
//   - registry.go, devnode.go: CDI specs, and the host's device nodes
//   - populate.go, library.go: the files of a claim, and of the node
//
// # What it may import
//
// grant and limiter. It is called by the NRI plugin, the agent (library and
// registry at start) and, later, the OCI runtime wrapper.
package oci
