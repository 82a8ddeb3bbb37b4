package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// TestWritersOfResourceSlices: an agent writes those of its own Node and driver.
func TestWritersOfResourceSlices(t *testing.T) {
	const agent = "system:serviceaccount:kube-system:gpuslice-agent"
	s := newServer(t, nil, "resourceslices.yaml")
	slice := func(node, driver string) *resourcev1.ResourceSlice {
		o := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{Driver: driver}}
		if node != "" {
			o.Spec.NodeName = &node
		}
		return o
	}
	const own = "gpu.gpuslice.io"
	create := func(who, on string, o *resourcev1.ResourceSlice) write {
		return write{as: who, node: on, resource: "resourceslices", operation: admission.Create, object: o}
	}
	update := func(on string, before, after *resourcev1.ResourceSlice) write {
		return write{as: agent, node: on, resource: "resourceslices", operation: admission.Update, old: before, object: after}
	}
	remove := func(on string, o *resourcev1.ResourceSlice) write {
		return write{as: agent, node: on, resource: "resourceslices", operation: admission.Delete, old: o}
	}
	inForce(t, s, create(agent, "n1", slice("n2", own)))
	for name, tc := range map[string]struct {
		write  write
		denied string
	}{
		"its own":                        {create(agent, "n1", slice("n1", own)), ""},
		"its own, changed":               {update("n1", slice("n1", own), slice("n1", own)), ""},
		"its own, removed":               {remove("n1", slice("n1", own)), ""},
		"without a pod":                  {create(agent, "", slice("n1", own)), ""},
		"another node's":                 {create(agent, "n1", slice("n2", own)), "only ResourceSlices of that Node"},
		"of no node":                     {create(agent, "n1", slice("", own)), "only ResourceSlices of that Node"},
		"of no node, without a pod":      {create(agent, "", slice("", own)), "only ResourceSlices of that Node"},
		"another node's, taken":          {update("n1", slice("n2", own), slice("n1", own)), "only ResourceSlices of that Node"},
		"given to another node":          {update("n1", slice("n1", own), slice("n2", own)), "only ResourceSlices of that Node"},
		"another node's, removed":        {remove("n1", slice("n2", own)), "only ResourceSlices of that Node"},
		"another driver's":               {create(agent, "n1", slice("n1", "gpu.nvidia.com")), "of the driver gpu.gpuslice.io"},
		"another driver's, removed":      {remove("n1", slice("n1", "gpu.nvidia.com")), "of the driver gpu.gpuslice.io"},
		"another driver's, by its agent": {create("system:serviceaccount:other:driver", "n1", slice("n1", "gpu.nvidia.com")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.admit(tc.write, s.policy)
			if tc.denied == "" {
				require.NoError(t, err)
				return
			}
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, tc.denied)
		})
	}
}
