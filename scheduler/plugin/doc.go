// Package plugin implements GPU scheduling as a plugin of kube-scheduler's framework: Factory.New
// is the plugin's factory. Memory and cores are in no node's allocatable, so NodeResourcesFit has
// to ignore them (see install/scheduler/config.yaml). The kubelet removes unknown extended
// resources from a pod before it admits it (Kubernetes 1.36, removeMissingExtendedResources).
package plugin

// There is no PreEnqueue: a pod that it rejects gets no event, so its author would not see the
// reason. PreFilter rejects invalid requests; the pod is retried when it changes.
