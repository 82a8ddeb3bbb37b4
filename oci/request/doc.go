// Package request decides which GPU shares a container without Kubernetes (docker, podman,
// nerdctl, ctr) gets: [Load] reads the operator's config, [FromContainer] the container's request,
// [Choose] selects GPUs. docs/REQUEST.md describes variables and annotations.
//
// An annotation overrides variables of the same meaning. Other contradictions are rejected, because
// programs differ in which value they use. A tenant writes the request, so nothing in it exceeds the
// operator's maximum, opens a GPU that the operator excludes, or raises the priority. That is why a
// grant here needs no signature.
package request
