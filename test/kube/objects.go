package kube

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/api"
)

// ReplicasOfGPU is how many pods share a GPU of a node that is only an object.
const ReplicasOfGPU = 10

// GPUUUID is that of a GPU of the node with that number.
func GPUUUID(node, gpu int) string {
	return fmt.Sprintf("GPU-%08d-0000-4000-8000-%012d", node, gpu)
}

// GPUs are what gpuslice-agent registers for the node with that number.
func GPUs(node, count int, memoryMiB int64, change func(gpu int, of *api.NodeGPU)) string {
	n := api.NodeGPUs{Version: api.NodeGPUsVersion}
	for i := range count {
		cores, replicas, healthy, numa := 100, ReplicasOfGPU, true, 2*i/count
		gpu := api.NodeGPU{UUID: GPUUUID(node, i), Model: "NVIDIA H100 80GB HBM3", Index: i, NUMA: &numa, MemoryMiB: &memoryMiB, Cores: &cores,
			Replicas: &replicas, Mode: api.ModeShared, Healthy: &healthy}
		if change != nil {
			change(i, &gpu)
		}
		n.GPUs = append(n.GPUs, gpu)
	}
	text, err := json.Marshal(n)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// CreateNode creates a node that is only an object, with what GPUs returned for so many GPUs.
func CreateNode(ctx context.Context, client kubernetes.Interface, name string, count int, gpus string) error {
	room := v1.ResourceList{"cpu": resource.MustParse("128"), "memory": resource.MustParse("1Ti"), "pods": resource.MustParse("250"),
		"nvidia.com/gpu": *resource.NewQuantity(int64(count)*ReplicasOfGPU, resource.DecimalSI)}
	n, err := client.CoreV1().Nodes().Create(ctx, &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}, Annotations: map[string]string{api.AnnotationNodeGPUs: gpus}},
		Status:     v1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	}, metav1.CreateOptions{})
	if err != nil || len(n.Spec.Taints) == 0 {
		return err
	}
	n.Spec.Taints = nil // no controller removes the taints of a new node
	_, err = client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
	return err
}

// CreateServiceAccount creates the account that pods need, where its controller does not run.
func CreateServiceAccount(ctx context.Context, client kubernetes.Interface, namespace string) error {
	_, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	return err
}
