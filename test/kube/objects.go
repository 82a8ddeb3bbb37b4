package kube

import (
	"context"
	"fmt"
	"os"

	"github.com/gpuslice/gpuslice/test/harness"
)

// NewControlPlane starts only etcd and kube-apiserver: a cluster of objects, for nodes without a kubelet. It
// has to be closed also after an error.
func NewControlPlane(ctx context.Context) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "gs")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Node: &harness.Node{}, Dir: dir, ip: addressOf(dir)}
	if err := c.StartEtcd(ctx); err != nil {
		return c, fmt.Errorf("etcd: %w", err)
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return c, fmt.Errorf("kube-apiserver: %w", err)
	}
	return c, nil
}
