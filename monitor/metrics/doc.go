// Package metrics tells Prometheus of a node: what its GPUs are granted and used for, and
// what the agent did about it. docs/METRICS.md lists all of them.
//
// What is of the moment (GPUs, containers) is read when somebody asks, once for all of
// it, by a gatherer of its own (Gatherer): a node has hundreds of containers with a dozen
// numbers each, and client_golang's collectors make some thirty objects of each number.
// What is counted over time (NRI) are ordinary collectors.
//
// It imports monitor/view; cmd/gpuslice-agent makes the registry, and serves the Door.
package metrics
