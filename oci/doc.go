// Package oci turns a grant into edits of a container (CDI ContainerEdits). [Edits] decides, [Apply] applies
// them to an OCI spec, [Populate] writes the limiter's files. Without a grant: [Void], and a refusal if
// [HasGPU]. The NRI plugin, the runtime wrapper and the slices call it.
package oci
