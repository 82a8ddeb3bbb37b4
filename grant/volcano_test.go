package grant_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// Volcano's positions are those of the containers with devices, so a container beside them must not get their GPUs.
func TestFromVolcano(t *testing.T) {
	const (
		a = gpuA + ",NVIDIA,1000,10:"
		b = gpuB + ",NVIDIA,2000,20:"
	)
	one, two := a, a+";"+b
	for _, test := range []struct {
		description, value, node, container string
		listed                              []grant.ContainerDevices
		err                                 error
		want                                *grant.Share
		kind                                error
	}{
		{description: "one container", value: one, container: "main", listed: []grant.ContainerDevices{{"main", 1}}, want: &grant.Share{gpuA, 1000, 10}},
		{description: "beside one without GPUs", value: one, container: "main", listed: []grant.ContainerDevices{{"sidecar", 0}, {"main", 1}}, want: &grant.Share{gpuA, 1000, 10}},
		{description: "one without GPUs", value: one, container: "sidecar", listed: []grant.ContainerDevices{{"sidecar", 0}, {"main", 1}}},
		{description: "one that the kubelet doesn't list", value: one, container: "debug", listed: []grant.ContainerDevices{{"main", 1}}},
		{description: "the second of two", value: two, container: "second", listed: []grant.ContainerDevices{{"first", 1}, {"proxy", 0}, {"second", 1}}, want: &grant.Share{gpuB, 2000, 20}},
		{description: "more containers than positions", value: one, container: "main", listed: []grant.ContainerDevices{{"main", 1}, {"other", 1}}, kind: grant.ErrAmbiguous},
		{description: "another number of devices", value: one, container: "main", listed: []grant.ContainerDevices{{"main", 2}}, kind: grant.ErrAmbiguous},
		{description: "no kubelet", value: one, container: "main", err: errors.New("no kubelet"), kind: grant.ErrAmbiguous},
		{description: "another node", value: one, node: "node-2", container: "main", listed: []grant.ContainerDevices{{"main", 1}}, kind: grant.ErrWrongNode},
		{description: "cut short", value: one[:len(one)-1], container: "main", listed: []grant.ContainerDevices{{"main", 1}}, kind: grant.ErrMalformed},
		{description: "a GPU of another vendor", value: "x,MLU,1,1:", container: "main", kind: grant.ErrMalformed},
		{description: "nothing", value: "", container: "main"},
	} {
		t.Run(test.description, func(t *testing.T) {
			node := test.node
			if node == "" {
				node = "node-1"
			}
			pod := grant.Pod{UID: "u", Namespace: "ns", Name: "p", Annotations: map[string]string{
				api.AnnotationVolcanoAllocated: test.value, api.AnnotationVolcanoToAllocate: test.value, api.AnnotationVolcanoNode: node,
			}}
			got, err := grant.FromPod(context.Background(), pod, test.container, "node-1", &listed{containers: test.listed, err: test.err}, nil)
			if test.kind != nil {
				require.ErrorIs(t, err, test.kind)
				return
			}
			require.NoError(t, err)
			if test.want == nil {
				require.Nil(t, got)
				return
			}
			require.Equal(t, []grant.Share{*test.want}, got.Shares)
			require.Equal(t, grant.SourceVolcano, got.Source)
		})
	}
}

func FuzzDecodeVolcano(f *testing.F) {
	f.Add(gpuA + ",NVIDIA,1000,10:;" + gpuB + ",NVIDIA,2000,20:")
	f.Add(";;")
	f.Add("x")
	f.Fuzz(func(t *testing.T, value string) {
		granted, err := grant.Decode(map[string]string{api.AnnotationVolcanoAllocated: value})
		if err != nil {
			require.ErrorIs(t, err, grant.ErrMalformed)
			return
		}
		if granted == nil {
			return
		}
		for _, shares := range granted.Positional {
			if len(shares) > 0 {
				require.NoError(t, grant.ValidateShares(shares))
			}
		}
	})
}
