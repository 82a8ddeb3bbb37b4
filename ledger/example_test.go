package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// A pod's grant is reserved for its container, and released when it ends.
func Example() {
	dir, err := os.MkdirTemp("", "gpuslice")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	const gpu = "GPU-0a000000-1111-2222-3333-444455556666"
	gpus := map[string]grant.GPU{gpu: {UUID: gpu, MemoryMiB: 143771, CorePercent: 100, Replicas: 10}}

	store, err := ledger.Open(dir)
	if err != nil {
		panic(err)
	}
	defer store.Close()

	reserve := func(id, memoryMiB string) error {
		pod := grant.Pod{UID: "uid-" + id, Namespace: "default", Name: "pod-" + id, Annotations: map[string]string{
			api.AnnotationHAMiToAllocate: gpu + ",NVIDIA," + memoryMiB + ",30:;",
		}}
		g, err := grant.FromPod(ctx, pod, "main", "node-1", nil, nil)
		if err != nil {
			return err
		}
		_, err = store.Claim(ctx, ledger.Claim{
			ContainerID: id, Owner: ledger.OwnerNRI, PodUID: pod.UID, PodNamespace: pod.Namespace, PodName: pod.Name,
			Container: g.Container, Shares: g.Shares, Source: g.Source, Position: g.Position,
		}, gpus, nil)
		return err
	}
	fmt.Println(reserve("c1", "80000"))
	err = reserve("c2", "80000")
	fmt.Println(errors.Is(err, grant.ErrOverbooked))
	fmt.Println(err)
	fmt.Println(store.Release(ctx, "c1"), store.Remove(ctx, "c1"))
	fmt.Println(reserve("c2", "80000"))
	// Output:
	// <nil>
	// true
	// pod default/pod-c2 container "main": GPU GPU-0a000000-1111-2222-3333-444455556666: memory 80000 MiB requested, 63771 of 143771 MiB free; containers that hold it: 1 (gpuslice status on the node lists them); wait until one of them ends, or request less
	// <nil> <nil>
	// <nil>
}
