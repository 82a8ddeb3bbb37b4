// Package webhook is the scheduler's door at the API server: it answers AdmissionReviews
// about pods that ask for GPUs, and about annotations that only the scheduler may write.
//
//	/mutate    a new pod that asks for GPUs gets the scheduler's name, the number of GPUs where
//	           only memory or cores are asked for, the runtime class, HAMi's priority variable,
//	           and the annotation by which NRI refuses its containers while our plugin is away
//	/validate  a pod that can never run as it is written is refused with the reason, and so is
//	           whoever else than the scheduler writes the scheduler's annotations: on create,
//	           update and status of a pod, and on a Binding, whose annotations become the pod's
//
// The decisions are pure functions of the pod and of Rules (mutate.go, validate.go, owned.go,
// required.go). Handler is the HTTP around them, Run a server with its certificate. It may import the
// scheduler's model, request, wire and kube; cmd/gpuslice-scheduler calls it. What the API
// server has to be told is in install/admission.
package webhook
