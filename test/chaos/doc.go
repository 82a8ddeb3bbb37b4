// Package chaos places pods by several replicas of the scheduler on a real API server (etcd and kube-apiserver), with nodes
// that are only objects, while faults happen: see scenarios. Each change of a pod is audited in the order of the API server's
// revisions: no GPU may be granted beyond its memory or cores at any revision, and after a fault each pod is placed within a
// minute. Run it by `make test-chaos`.
package chaos
