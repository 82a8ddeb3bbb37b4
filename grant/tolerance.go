package grant

// AnnotationTolerance is the annotation of pods whose containers can be created without the node's agent, for
// NRI's default validator. Only operators may set it: such a pod is not controlled by the agent.
const AnnotationTolerance = "gpuslice.io/tolerate-missing-plugins"
