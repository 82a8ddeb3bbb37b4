// Package api has the names and formats that components share with each other, with Kubernetes and with other
// schedulers: annotations and their writers, labels, resources, environment variables, paths, the node's annotations
// and node.json. It imports only the standard library.
package api
