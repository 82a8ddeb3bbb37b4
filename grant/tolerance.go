package grant

// AnnotationTolerance is the annotation of pods with containers that can be created without the node's agent,
// for NRI's default validator. Only operators may set it: the agent does not control such a pod.
const AnnotationTolerance = "gpuslice.io/tolerate-missing-plugins"
