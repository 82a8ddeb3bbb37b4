package grant

// AnnotationTolerance is the annotation of pods whose containers may be made while the node's agent is
// away: NRI's default validator goes by it where the agent has configured it. It is the operator's, for what
// the agent itself needs: who has it gets around the agent.
const AnnotationTolerance = "gpuslice.io/tolerate-missing-plugins"
