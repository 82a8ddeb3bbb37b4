package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/api"
)

// A pod that runs gets more; a pod that comes then finds the GPU as full as it is.
func TestResize(t *testing.T) {
	c := start(t, node("n1", 1))
	c.create(gpuPod("first", 0, 40000, 30))
	c.until("first is placed", func() bool { return c.bound("first") })
	ask := func(value string) {
		_, err := c.CoreV1().Pods("ns").Patch(context.Background(), "first", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"gpuslice.io/resize":`+value+`}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	answered := func() bool {
		_, asked := c.pod("first").Annotations[api.AnnotationResize]
		return !asked
	}
	ask(`"{\"main\":{\"memoryMiB\":60000}}"`)
	c.until("it is resized", answered)
	require.Contains(t, c.pod("first").Annotations[api.AnnotationResizeStatus], `"outcome":"reserved"`)
	for _, shares := range c.taken() {
		require.Equal(t, []int64{60000}, shares)
	}
	c.create(gpuPod("second", 0, 30000, 30))
	c.create(gpuPod("third", 0, 20000, 30))
	c.until("third is placed", func() bool { return c.bound("third") })
	require.False(t, c.bound("second"))
	ask(`"{\"main\":{\"memoryMiB\":70000}}"`)
	c.until("it is refused", answered)
	require.Contains(t, c.pod("first").Annotations[api.AnnotationResizeStatus], `"outcome":"refused"`)
	ask(`"{\"main\":{\"memoryMiB\":20000}}"`)
	c.until("second is placed on the released GPU", func() bool { return c.bound("second") })
}
