package grant_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

const (
	mig1 = "MIG-11111111-0000-4000-8000-000000000001"
	mig2 = "MIG-2222abcd-0000-4000-8000-000000000002"
	migX = "MIG-99999999-0000-4000-8000-000000000009" // taken away
	r1g  = "gpuslice.io/mig-1g.10gb"
	r2g  = "gpuslice.io/mig-2g.20gb"
)

func migGPUs() map[string]grant.GPU {
	return map[string]grant.GPU{
		gpuA: {UUID: gpuA, MemoryMiB: 81_559, CorePercent: 100, Replicas: 10},
		mig1: {UUID: mig1, MemoryMiB: 9_856, CorePercent: 100, Replicas: 1},
		mig2: {UUID: mig2, MemoryMiB: 20_096, CorePercent: 100, Replicas: 1},
	}
}

func TestFromMIG(t *testing.T) {
	one, two := mig1+"::0", mig2+"::0"
	whole1, whole2 := grant.Share{UUID: mig1, MemoryMiB: 9856, CorePercent: 100}, grant.Share{UUID: mig2, MemoryMiB: 20096, CorePercent: 100}
	replicas := api.AnnotationReplicas
	for _, test := range []struct {
		description string
		annotations map[string]string
		pod         map[string]string
		scheduled   bool
		want        []grant.Share
		kind        error
		says        string
	}{
		{description: "none"},
		{description: "replicas of a GPU are not ours", annotations: map[string]string{replicas: gpuA + "::0"}},
		{description: "nonsense there isn't either", annotations: map[string]string{replicas: "all"}},
		{description: "nor in an annotation of another name", annotations: map[string]string{"gpuslice.io/mig": one, "nvidia.com/mig-1g.10gb": one}},
		{description: "only a scheduler's grant", scheduled: true},
		{description: "one", annotations: map[string]string{r1g: one}, want: []grant.Share{whole1}},
		{description: "two of one resource, in this order", annotations: map[string]string{r1g: two + "," + one}, want: []grant.Share{whole2, whole1}},
		{description: "two resources, by their names", annotations: map[string]string{r2g: two, r1g: one}, want: []grant.Share{whole1, whole2}},
		{description: "as if it were a GPU", annotations: map[string]string{replicas: one}, want: []grant.Share{whole1}},
		{description: "a pod of which a scheduler spoke", annotations: map[string]string{r1g: one}, pod: map[string]string{api.AnnotationGrant: "{}"}, want: []grant.Share{whole1}},

		{description: "a grant too", annotations: map[string]string{r1g: one}, scheduled: true, kind: grant.ErrMalformed, says: "a scheduler's grant too"},
		{description: "a grant too, as if it were a GPU", annotations: map[string]string{replicas: one}, scheduled: true, kind: grant.ErrMalformed, says: "a scheduler's grant too"},
		{description: "GPUs too", annotations: map[string]string{r1g: one, replicas: gpuA + "::0"}, kind: grant.ErrMalformed, says: "replicas of GPUs too"},
		{description: "GPUs in the same", annotations: map[string]string{replicas: gpuA + "::0," + one}, kind: grant.ErrMalformed, says: "and GPUs can't be mixed"},
		{description: "a GPU in a MIG resource", annotations: map[string]string{r1g: gpuA + "::0"}, kind: grant.ErrMalformed, says: "must be MIG-"},
		{description: "on the pod", pod: map[string]string{r1g: one}, kind: grant.ErrMalformed, says: "is on the pod"},
		{description: "another one on the pod", annotations: map[string]string{r1g: one}, pod: map[string]string{r2g: ""}, kind: grant.ErrMalformed, says: "is on the pod"},
		{description: "on the pod too, as if it were a GPU", annotations: map[string]string{replicas: one}, pod: map[string]string{replicas: one}, kind: grant.ErrMalformed, says: "is on the pod"},

		{description: "empty", annotations: map[string]string{r1g: ""}, kind: grant.ErrMalformed, says: "must be MIG-"},
		{description: "an empty one behind", annotations: map[string]string{r1g: one + ","}, kind: grant.ErrMalformed, says: "must be MIG-"},
		{description: "a space", annotations: map[string]string{r1g: one + ", " + two}, kind: grant.ErrMalformed, says: "must be MIG-"},
		{description: "no number", annotations: map[string]string{r1g: mig1}, kind: grant.ErrMalformed, says: "must be <UUID>::<n>"},
		{description: "a second replica", annotations: map[string]string{r1g: mig1 + "::1"}, kind: grant.ErrUnknownGPU, says: "numbered"},
		{description: "a second spelling", annotations: map[string]string{r1g: mig1 + "::00"}, kind: grant.ErrMalformed, says: "numbered"},
		{description: "capitals", annotations: map[string]string{r1g: strings.ToUpper(mig2) + "::0"}, kind: grant.ErrMalformed, says: "must be <UUID>::<n>"},
		{description: "an old driver's name", annotations: map[string]string{r1g: "MIG-" + gpuA + "/1/0::0"}, kind: grant.ErrMalformed, says: "must be <UUID>::<n>"},
		{description: "twice", annotations: map[string]string{r1g: one + "," + one}, kind: grant.ErrMalformed, says: "listed twice"},
		{description: "twice, of two resources", annotations: map[string]string{r1g: one, r2g: one}, kind: grant.ErrMalformed, says: "listed twice"},
		{description: "one that was taken away", annotations: map[string]string{r1g: migX + "::0"}, kind: grant.ErrUnknownGPU, says: "the kubelet chooses again"},
		{description: "too long", annotations: map[string]string{r1g: "MIG-" + strings.Repeat("x", grant.MaxAnnotationBytes)}, kind: grant.ErrMalformed, says: "at most"},
	} {
		t.Run(test.description, func(t *testing.T) {
			pod := grant.Pod{Namespace: "ns", Name: "name", Annotations: test.pod}
			var scheduled *grant.Grant
			if test.scheduled {
				scheduled = &grant.Grant{Container: "main", Shares: []grant.Share{{UUID: gpuA, MemoryMiB: 1}}}
			}
			got, err := grant.FromMIG(pod, "main", test.annotations, migGPUs(), scheduled)
			if test.kind != nil {
				require.ErrorIs(t, err, test.kind)
				for _, part := range []string{"pod ns/name", `container "main"`, "annotation gpuslice.io/", test.says} {
					assert.Contains(t, err.Error(), part)
				}
				assert.Less(t, len(err.Error()), 500)
				return
			}
			require.NoError(t, err)
			if test.want == nil {
				assert.Nil(t, got)
				return
			}
			assert.Equal(t, &grant.Grant{Container: "main", Shares: test.want, Source: grant.SourceMIG}, got)
			require.NoError(t, got.Validate())
			require.NoError(t, grant.CheckGPUs(got.Shares, migGPUs()))
		})
	}
	assert.Equal(t, r1g, grant.MIGAnnotation("mig-1g.10gb"))
}

// A scheduler's grant of both is refused too.
func TestGPUsAndMIGDontMix(t *testing.T) {
	gpu, mig := grant.Share{UUID: gpuA, MemoryMiB: 1}, grant.Share{UUID: mig1, MemoryMiB: 1}
	for _, shares := range [][]grant.Share{{gpu, mig}, {mig, gpu}} {
		err := grant.CheckGPUs(shares, migGPUs())
		require.ErrorIs(t, err, grant.ErrMalformed)
		require.ErrorContains(t, err, "can't be in one container")
	}
	require.NoError(t, grant.CheckGPUs([]grant.Share{mig, {UUID: mig2, MemoryMiB: 1}}, migGPUs()))
}
