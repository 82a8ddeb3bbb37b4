package kube

import (
	"context"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// healthyDevices is how many devices of a resource the kubelet can give to a pod now. The Node object has a
// number that is seconds old.
func (c *Cluster) healthyDevices(ctx context.Context, resource string) (int, error) {
	conn, err := grpc.NewClient("unix:"+c.podResourcesSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	answer, err := podresources.NewPodResourcesListerClient(conn).GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return 0, fmt.Errorf("ask the kubelet for its devices: %w", err)
	}
	count := 0
	for _, d := range answer.GetDevices() {
		if d.GetResourceName() == resource {
			count += len(d.GetDeviceIds())
		}
	}
	return count, nil
}

func (c *Cluster) podResourcesSocket() string {
	return filepath.Join(c.kubeletRoot(), "pod-resources", "kubelet.sock")
}
