package deviceplugin

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func TestPreferParts(t *testing.T) {
	for _, test := range []struct {
		description     string
		policy          Policy
		links           Links
		available, must string
		size            int32
		want            string
	}{
		{"of one GPU", Packed, nil, "a0 a1 a2 b0 b1 b2", "", 2, "a0 a1"},
		{"the fullest that has enough", Packed, nil, "a0 a1 a2 b1 b2 c2", "", 2, "b1 b2"},
		{"the emptiest", Spread, nil, "a1 a2 b0 b1 b2 c2", "", 2, "b0 b1"},
		{"a whole GPU", Packed, nil, "a0 a1 b0 b1 b2", "", 3, "b0 b1 b2"},
		{"two GPUs, the emptiest first", Packed, nil, "a0 a1 b0 b1 b2 c0", "", 4, "b0 b1 b2 c0"},
		{"two whole GPUs, connected", Packed, pairs{"a-c": 1}, "a0 a1 a2 b0 b1 b2 c0 c1 c2", "", 6, "a0 a1 a2 c0 c1 c2"},
		{"the GPU of what must be", Packed, nil, "a0 b1 b2 c0 c1 c2", "b0", 3, "b0 b1 b2"},
		{"no more than must be", Packed, nil, "a0 a1", "b0 b1", 2, "b0 b1"},
	} {
		t.Run(test.description, func(t *testing.T) {
			plugin, _, _ := testPlugin(3, "GPU-a", "GPU-b", "GPU-c")
			core, _ := Vcuda()
			plugin.Resource, plugin.Links, plugin.Policy = core, test.links, func() Policy { return test.policy }
			got, err := plugin.GetPreferredAllocation(context.Background(), preferredRequest(test.available, test.must, test.size))
			require.NoError(t, err)
			assert.Equal(t, replicaIDs(test.want), got.GetContainerResponses()[0].GetDeviceIDs())
		})
	}
	plugin, _, _ := testPlugin(3, "GPU-a")
	plugin.Resource.Parts = true
	_, err := plugin.GetPreferredAllocation(context.Background(), preferredRequest("a0 a1", "", 3))
	require.ErrorContains(t, err, "3 devices can't be chosen of 2")
}

// Hundreds of devices are passed along in few words.
func TestAllocateParts(t *testing.T) {
	for _, test := range []struct {
		description, ids, want string
	}{
		{"one", "a1", "GPU-a::1"},
		{"a run", "a2 a0 a1", "GPU-a::0-2"},
		{"runs of two GPUs", "b0 b1 a1 a2", "GPU-a::1-2,GPU-b::0-1"},
		{"a gap", "a0 a2", "GPU-a::0,GPU-a::2"},
		{"numbers that go on in another GPU", "a1 b2", "GPU-a::1,GPU-b::2"},
	} {
		t.Run(test.description, func(t *testing.T) {
			plugin, _, _ := testPlugin(3, "GPU-a", "GPU-b")
			_, memory := Vcuda()
			plugin.Resource = memory
			got, err := plugin.Allocate(context.Background(), &v1beta1.AllocateRequest{
				ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: replicaIDs(test.ids)}},
			})
			require.NoError(t, err)
			r := got.GetContainerResponses()[0]
			assert.Equal(t, map[string]string{"gpuslice.io/vcuda-memory": test.want}, r.GetAnnotations())
			assert.Equal(t, "void", r.GetEnvs()["NVIDIA_VISIBLE_DEVICES"])
		})
	}
}
