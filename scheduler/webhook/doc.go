// Package webhook answers AdmissionReviews about pods that request GPUs and about annotations that
// only the scheduler may write. /mutate adds what a new pod needs (scheduler, GPU count, runtime
// class, NRI annotation), /validate rejects pods that cannot run as written and forged annotations.
// Rules are the settings, Handler the HTTP handler, Run the server with its certificate.
package webhook
