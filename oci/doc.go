// Package oci turns a grant into edits of a container (CDI ContainerEdits), and applies edits to an OCI runtime spec.
// [Edits] decides; the NRI plugin translates its result to an adjustment, the runtime wrapper calls [Apply]. [Populate]
// writes the limiter's files. Without a grant: [Void], and a refusal if [HasGPU].
// A container never gets a GPU without limits, and never starts without a granted GPU: all else is an error.
// No edit can limit a privileged container, or a program that finds the driver's functions without the loader.
package oci
