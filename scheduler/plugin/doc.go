// Package plugin is a plugin of kube-scheduler's framework that schedules GPUs: see Factory.New.
// NodeResourcesFit has to ignore memory and cores, which are in no node's allocatable (see
// install/scheduler/config.yaml); the kubelet removes unknown extended resources from a pod
// (Kubernetes 1.36, removeMissingExtendedResources).
package plugin

// There is no PreEnqueue, because a pod that it rejects gets no event with the reason.
