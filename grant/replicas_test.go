package grant_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// replicaGPUs are GPUs that don't divide evenly.
func replicaGPUs() map[string]grant.GPU {
	return map[string]grant.GPU{
		gpuA: {UUID: gpuA, MemoryMiB: 81_559, CorePercent: 100, Replicas: 10},
		gpuB: {UUID: gpuB, MemoryMiB: 40_960, CorePercent: 250, Replicas: 3},  // scaled
		gpuC: {UUID: gpuC, MemoryMiB: 1_000, CorePercent: 100, Replicas: 101}, // too many
	}
}

func TestFromReplicas(t *testing.T) {
	one := gpuA + "::0"
	whole := strings.Repeat(gpuA+"::%d,", 10)
	whole = fmt.Sprintf(strings.TrimSuffix(whole, ","), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	for _, test := range []struct {
		description string
		value       string
		pod         map[string]string
		want        []grant.Share
		kind        error
		says        string
	}{
		{description: "one, rounded down", value: one, want: []grant.Share{{gpuA, 8155, 10}}},
		{description: "the last", value: gpuA + "::9", want: []grant.Share{{gpuA, 8155, 10}}},
		{description: "two of a GPU add up", value: gpuA + "::3," + gpuA + "::7", want: []grant.Share{{gpuA, 16310, 20}}},
		{description: "the whole GPU", value: whole, want: []grant.Share{{gpuA, 81550, 100}}},
		{description: "two GPUs, in this order", value: gpuB + "::0," + one, want: []grant.Share{{gpuB, 13653, 83}, {gpuA, 8155, 10}}},
		{description: "no more compute time than a GPU has", value: gpuB + "::0," + gpuB + "::1", want: []grant.Share{{gpuB, 27306, 100}}},
		{description: "others' annotations on the pod", value: one, pod: map[string]string{"hami.io/vgpu-time": "1"}, want: []grant.Share{{gpuA, 8155, 10}}},

		{description: "a grant for another container", value: one, pod: map[string]string{api.AnnotationGrant: "{}"}},
		{description: "only a signature", value: one, pod: map[string]string{api.AnnotationSignature: ""}},
		{description: "HAMi's empty entries", value: one, pod: map[string]string{api.AnnotationHAMiToAllocate: ";;"}},
		{description: "HAMi's erased annotation", value: one, pod: map[string]string{api.AnnotationHAMiAllocated: ""}},
		{description: "HAMi's node", value: one, pod: map[string]string{api.AnnotationHAMiNode: "node-1"}},

		{description: "on the pod too", value: one, pod: map[string]string{api.AnnotationReplicas: one}, kind: grant.ErrMalformed, says: "is on the pod"},
		{description: "empty", value: "", kind: grant.ErrMalformed, says: `replica ""`},
		{description: "an empty one behind", value: one + ",", kind: grant.ErrMalformed, says: `replica ""`},
		{description: "a space", value: one + ", " + gpuA + "::1", kind: grant.ErrMalformed, says: "must be <UUID>::<n>"},
		{description: "no number", value: gpuA, kind: grant.ErrMalformed, says: "must be <UUID>::<n>"},
		{description: "an empty number", value: gpuA + "::", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "one that there is no longer", value: gpuA + "::10", kind: grant.ErrUnknownGPU, says: "10 replicas now, numbered from 0: delete the pod"},
		{description: "below zero", value: gpuA + "::-1", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "a second spelling", value: gpuA + "::00", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "a plus", value: gpuA + "::+1", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "more than an int", value: gpuA + "::18446744073709551616", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "one more part", value: one + "::0", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "twice the same", value: one + "," + one, kind: grant.ErrMalformed, says: "listed twice"},
		{description: "a GPU in capitals", value: strings.ToUpper(one), kind: grant.ErrMalformed, says: "must be <UUID>::<n>"},
		{description: "no GPU's name", value: "all::0", kind: grant.ErrMalformed, says: "must be <UUID>::<n>"},
		{description: "a GPU that isn't there", value: gpuX + "::0", kind: grant.ErrUnknownGPU, says: "no such GPU"},
		{description: "one good, one not there", value: one + "," + gpuX + "::0", kind: grant.ErrUnknownGPU, says: "no such GPU"},
		{description: "too little for each", value: gpuC + "::0", kind: grant.ErrOverbooked, says: "can't be divided by 101 replicas"},
		{description: "too long", value: strings.Repeat("x", grant.MaxAnnotationBytes+1), kind: grant.ErrMalformed, says: "at most"},
		{description: "long nonsense", value: strings.Repeat("x", 10_000), kind: grant.ErrMalformed, says: "…"},
	} {
		t.Run(test.description, func(t *testing.T) {
			pod := grant.Pod{Namespace: "ns", Name: "name", Annotations: test.pod}
			got, err := grant.FromReplicas(pod, "main", map[string]string{api.AnnotationReplicas: test.value}, replicaGPUs())
			if test.kind != nil {
				require.ErrorIs(t, err, test.kind)
				for _, part := range []string{"pod ns/name", `container "main"`, api.AnnotationReplicas, test.says} {
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
			assert.Equal(t, &grant.Grant{Container: "main", Shares: test.want, Source: grant.SourceReplicas}, got)
		})
	}
	t.Run("none", func(t *testing.T) {
		got, err := grant.FromReplicas(grant.Pod{}, "main", nil, replicaGPUs())
		require.NoError(t, err)
		assert.Nil(t, got)
	})
	t.Run("a GPU without replicas", func(t *testing.T) {
		gpus := map[string]grant.GPU{gpuA: {UUID: gpuA, MemoryMiB: 1000, CorePercent: 100}}
		_, err := grant.FromReplicas(grant.Pod{}, "main", map[string]string{api.AnnotationReplicas: one}, gpus)
		require.ErrorIs(t, err, grant.ErrUnknownGPU)
	})
}

// FuzzFromReplicas: no annotation panics, and what is accepted is valid and no more
// than the GPUs.
func FuzzFromReplicas(f *testing.F) {
	for _, seed := range []string{"", ",", "::", gpuA + "::0", gpuA + "::0," + gpuB + "::2", gpuA + "::0," + gpuA + "::9"} {
		f.Add(seed)
	}
	gpus := replicaGPUs()
	f.Fuzz(func(t *testing.T, value string) {
		got, err := grant.FromReplicas(grant.Pod{}, "main", map[string]string{api.AnnotationReplicas: value}, gpus)
		if err != nil {
			require.Nil(t, got)
			return
		}
		require.NoError(t, got.Validate())
		require.NoError(t, grant.CheckGPUs(got.Shares, gpus))
	})
}
