package kube

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/version"
)

// KubernetesEnv is the variable that chooses the version of the clusters' Kubernetes: newest (the default) or oldest, the oldest
// that gpuslice supports.
const KubernetesEnv = "GPUSLICE_TEST_KUBERNETES"

// programs is setup.sh's option that prints the directory of a program.
func programs(name string) (option string, err error) {
	switch wanted := os.Getenv(KubernetesEnv); {
	case name == "helm":
		return "--where-helm", nil
	case name == "etcd", wanted == "", wanted == "newest":
		return "--where-kubernetes", nil
	case wanted == "oldest":
		return "--where-kubernetes-oldest", nil
	default:
		return "", fmt.Errorf("%s is %q: must be newest or oldest", KubernetesEnv, wanted)
	}
}

// Since is the minor version of Kubernetes that a feature is there from.
type Since uint

// What not all supported versions have, of what the tests use.
const (
	// NFTables is kube-proxy's mode, without its feature gate.
	NFTables Since = 31
	// InitContainers are those with memory and cores that the Node does not list.
	InitContainers Since = 31
	// Resize is the subresource of pods.
	Resize Since = 32
	// DRA are shares by ResourceClaims, as the chart allows them.
	DRA Since = 36
)

// Has reports whether the cluster's Kubernetes has a feature.
func (c *Cluster) Has(feature Since) (bool, error) {
	server, err := c.API.Discovery().ServerVersion()
	if err != nil {
		return false, err
	}
	parsed, err := version.ParseGeneric(server.GitVersion)
	return err == nil && parsed.Minor() >= uint(feature), err
}
