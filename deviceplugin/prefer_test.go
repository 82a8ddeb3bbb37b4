package deviceplugin

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// pairs are links by "a-b", the UUIDs' last letters.
type pairs map[string]int

func (p pairs) Link(a, b string) int {
	a, b = strings.TrimPrefix(a, "GPU-"), strings.TrimPrefix(b, "GPU-")
	return p[min(a, b)+"-"+max(a, b)]
}

func TestPreferredAllocation(t *testing.T) {
	const all = "a0 a1 a2 b0 b1 b2 c0 c1 c2"
	for _, test := range []struct {
		description     string
		policy          Policy
		links           func(a, b string) int
		available, must string
		size            int32
		want            string
	}{
		{"one of equal ones: the first", Packed, nil, all, "", 1, "a0"},
		{"packed: the fullest GPU", Packed, nil, "a0 a1 a2 b1 c0 c1", "", 1, "b1"},
		{"spread: the emptiest GPU", Spread, nil, "a1 b1 c0 c1", "", 1, "c0"},
		{"no policy is packed", "", nil, "a0 a1 b1", "", 1, "b1"},
		{"the kubelet's order doesn't matter", Packed, nil, "c2 b1 b0 a2 c1 a1 a0 c0 b2", "", 2, "a0 b0"},
		{"two are of two GPUs", Packed, nil, all, "", 2, "a0 b0"},
		{"two are of two GPUs, packed", Packed, nil, "a0 a1 a2 b0 b1 c0", "", 2, "b0 c0"},
		{"two are of two GPUs, spread", Spread, nil, "a0 a1 a2 b0 b1 c0", "", 2, "a0 b0"},
		{"more than there are GPUs", Packed, nil, all, "", 5, "a0 a1 b0 b1 c0"},
		{"all of them", Packed, nil, all, "", 9, all},
		{"only one GPU", Packed, nil, "b0 b1 b2", "", 2, "b0 b1"},
		{"what must be, and nothing else", Packed, nil, all, "c2 c1", 2, "c1 c2"},
		{"what must be, and another GPU", Packed, nil, all, "a1", 2, "a1 b0"},
		{"what must be and is not free", Packed, nil, "b0 b1", "a1", 2, "a1 b0"},
		{"connected GPUs", Packed, pairs{"b-c": 2, "a-b": 1}.Link, all, "", 2, "b0 c0"},
		{"connected GPUs before full ones", Packed, pairs{"b-c": 1}.Link, "a0 b0 b1 c0 c1", "", 2, "b0 c0"},
		{"unknown words are no links", Packed, pairs{}.Link, all, "", 2, "a0 b0"},
		{"connected to what must be", Packed, pairs{"a-c": 1, "a-b": 0, "b-c": 9}.Link, all, "a2", 2, "a2 c0"},
		{"connected, yet distinct", Packed, pairs{"b-c": 1}.Link, all, "", 4, "a0 b0 b1 c0"},
		{"one needs no link", Packed, pairs{"b-c": 1}.Link, all, "", 1, "a0"},
		{"no preference: by id", InOrder, pairs{"b-c": 2}.Link, "c0 b2 b0 a2 a1", "", 3, "a1 a2 b0"},
		{"no preference, and what must be", InOrder, nil, "a0 a1 b0", "b0", 2, "a0 b0"},
		{"some are gone", Packed, nil, "a7 a8 b2 c1", "", 2, "b2 c1"},
		{"the best of both pairs", Spread, pairs{"a-b": 4, "c-d": 5}.Link, "a0 a1 b0 b1 c0 d0", "", 2, "c0 d0"},
	} {
		t.Run(test.description, func(t *testing.T) {
			plugin, _, _ := testPlugin(3, "GPU-a", "GPU-b", "GPU-c", "GPU-d")
			plugin.Links = test.links
			if test.policy != "" {
				plugin.Policy = func() Policy { return test.policy }
			}
			got, err := plugin.GetPreferredAllocation(context.Background(), preferredRequest(test.available, test.must, test.size))
			require.NoError(t, err)
			require.Len(t, got.GetContainerResponses(), 1)
			assert.Equal(t, replicaIDs(test.want), got.GetContainerResponses()[0].GetDeviceIDs())
		})
	}
}

func TestPreferredAllocationErrors(t *testing.T) {
	for _, test := range []struct {
		description     string
		available, must string
		size            int32
		want            string
	}{
		{"none", "a0", "", 0, "0 devices can't be chosen of 1"},
		{"fewer than none", "a0", "", -1, "-1 devices"},
		{"more than there are", "a0 a1", "", 3, "3 devices can't be chosen of 2"},
		{"fewer than there must be", "a0 a1", "a0 a1", 1, "1 devices can't be chosen of 2, 2 of which must be among them"},
		{"nothing free", "", "", 1, "1 devices can't be chosen of 0"},
		{"none that is left", "a9 b0", "", 1, "1 devices can't be chosen of 0"},
		{"malformed in what must be", "a0", "a9", 1, `"GPU-a::9" is not a device`},
	} {
		t.Run(test.description, func(t *testing.T) {
			plugin, _, _ := testPlugin(3, "GPU-a")
			_, err := plugin.GetPreferredAllocation(context.Background(), preferredRequest(test.available, test.must, test.size))
			require.ErrorContains(t, err, test.want)
		})
	}
}

func preferredRequest(available, must string, size int32) *v1beta1.PreferredAllocationRequest {
	return &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: replicaIDs(available), MustIncludeDeviceIDs: replicaIDs(must), AllocationSize: size,
	}}}
}

// replicaIDs are ids of "a0 b1": GPU-a's replica 0, GPU-b's 1.
func replicaIDs(short string) (ids []string) {
	for _, s := range strings.Fields(short) {
		ids = append(ids, fmt.Sprintf("GPU-%s::%s", s[:1], s[1:]))
	}
	return ids
}

// Eight replicas among 16 GPUs of 20, every pair of which is connected.
func BenchmarkPreferredAllocation(b *testing.B) {
	plugin := largePlugin()
	plugin.Links = pairs{}.Link
	gpus, _ := plugin.GPUs.GPUs()
	r := &v1beta1.ContainerPreferredAllocationRequest{AllocationSize: 8}
	for _, d := range plugin.devices(gpus, true) {
		r.AvailableDeviceIDs = append(r.AvailableDeviceIDs, d.GetID())
	}
	for b.Loop() {
		_, err := plugin.preferred(r, gpus)
		require.NoError(b, err)
	}
}

func TestPreferParts(t *testing.T) {
	for _, test := range []struct {
		description     string
		policy          Policy
		links           func(a, b string) int
		available, must string
		size            int32
		want            string
	}{
		{"of one GPU", Packed, nil, "a0 a1 a2 b0 b1 b2", "", 2, "a0 a1"},
		{"the fullest that has enough", Packed, nil, "a0 a1 a2 b1 b2 c2", "", 2, "b1 b2"},
		{"the emptiest", Spread, nil, "a1 a2 b0 b1 b2 c2", "", 2, "b0 b1"},
		{"a whole GPU", Packed, nil, "a0 a1 b0 b1 b2", "", 3, "b0 b1 b2"},
		{"two GPUs, the emptiest first", Packed, nil, "a0 a1 b0 b1 b2 c0", "", 4, "b0 b1 b2 c0"},
		{"two whole GPUs, connected", Packed, pairs{"a-c": 1}.Link, "a0 a1 a2 b0 b1 b2 c0 c1 c2", "", 6, "a0 a1 a2 c0 c1 c2"},
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
