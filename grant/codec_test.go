package grant_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/granttest"
)

const (
	gpuA = "GPU-0a000000-1111-2222-3333-444455556666"
	gpuB = "GPU-0b000000-1111-2222-3333-444455556666"
	gpuC = "GPU-0c000000-1111-2222-3333-444455556666"
	gpuX = "GPU-0d000000-1111-2222-3333-444455556666"
)

func TestDecodeHAMi(t *testing.T) {
	tests := []struct {
		description, value string
		want               grant.Positional
	}{
		{"nothing", "", grant.Positional{}},
		{"one empty entry", ";", grant.Positional{nil}},
		{"one GPU", gpuA + ",NVIDIA,3000,30:;", grant.Positional{{{gpuA, 3000, 30}}}},
		{"a MIG device", gpuC + ",NVIDIA,3000,0:;", grant.Positional{{{gpuC, 3000, 0}}}},
		{"two GPUs", gpuA + ",NVIDIA,3000,30:" + gpuB + ",NVIDIA,5000,100:;", grant.Positional{{{gpuA, 3000, 30}, {gpuB, 5000, 100}}}},
		{"empty entries keep their position", ";" + gpuA + ",NVIDIA,3000,30:;;" + gpuA + ",NVIDIA,5000,0:;;",
			grant.Positional{nil, {{gpuA, 3000, 30}}, nil, {{gpuA, 5000, 0}}, nil}},
		{"placeholder of HAMi 2.4", ",,0,0:;" + gpuA + ",NVIDIA,3000,30:;", grant.Positional{nil, {{gpuA, 3000, 30}}}},
		{"several placeholders in an entry", ",,0,0:,,0,0:;", grant.Positional{nil}},
	}
	for _, test := range tests {
		t.Run(test.description, func(t *testing.T) {
			got, err := grant.DecodeHAMi(test.value)
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
			again, err := grant.EncodeHAMi(got)
			require.NoError(t, err)
			assert.Equal(t, strings.ReplaceAll(test.value, ",,0,0:", ""), again)
		})
	}
}

func TestEncodeRefusesWhatDecodeWould(t *testing.T) {
	bad := []grant.Share{{"GPU-aaa", 1, 1}}
	_, err := grant.EncodeHAMi(grant.Positional{bad})
	require.ErrorIs(t, err, grant.ErrMalformed)
	_, err = grant.EncodeHAMi(make(grant.Positional, grant.MaxContainers+1))
	require.ErrorIs(t, err, grant.ErrMalformed)
	_, err = grant.EncodeGrant(&grant.PodGrant{Containers: map[string][]grant.Share{"main": bad}})
	require.ErrorIs(t, err, grant.ErrMalformed)
	_, err = grant.EncodeGrant(&grant.PodGrant{})
	require.ErrorIs(t, err, grant.ErrMalformed)
	_, err = grant.EncodeGrant(&grant.PodGrant{Containers: map[string][]grant.Share{"Main": {{gpuA, 1, 1}}}})
	require.ErrorIs(t, err, grant.ErrMalformed)
	_, err = grant.EncodeGrant(&grant.PodGrant{Node: "n\xff", Containers: map[string][]grant.Share{"main": {{gpuA, 1, 1}}}})
	require.ErrorIs(t, err, grant.ErrMalformed)
}

func TestGrantRoundTrip(t *testing.T) {
	pod := &grant.PodGrant{Node: "node-1", Containers: map[string][]grant.Share{
		"main": {{gpuA, 8000, 30}, {gpuC, 1, 0}},
		"side": {{gpuB, grant.MaxMemoryMiB, 100}},
	}}
	value, err := grant.EncodeGrant(pod)
	require.NoError(t, err)
	got, err := grant.DecodeGrant(value)
	require.NoError(t, err)
	assert.Equal(t, pod, got)
	assert.Equal(t, `{"version":1,"node":"node-1","containers":{"main":[{"uuid":"`+gpuA+`","memoryMiB":8000,"cores":30},{"uuid":"`+gpuC+
		`","memoryMiB":1,"cores":0}],"side":[{"uuid":"`+gpuB+`","memoryMiB":16777216,"cores":100}]}}`, value)
}

// FuzzDecodeHAMi: no input panics, what is accepted is valid and is read back
// equal after it was written.
func FuzzDecodeHAMi(f *testing.F) {
	for _, test := range granttest.MalformedCases(granttest.Node{Name: "node-1", GPU: gpuA, Other: gpuB, Missing: gpuX, GPUMiB: 100_000}) {
		if value, ok := test.Annotations[api.AnnotationHAMiToAllocate]; ok && len(value) < 1000 {
			f.Add(value)
		}
	}
	f.Fuzz(func(t *testing.T, value string) {
		positional, err := grant.DecodeHAMi(value)
		if err != nil {
			require.ErrorIs(t, err, grant.ErrMalformed)
			return
		}
		for i, shares := range positional {
			if len(shares) > 0 {
				g := grant.Grant{Container: "c", Shares: shares, Source: grant.SourceHAMi, Position: &i}
				require.NoError(t, g.Validate())
			}
		}
		again, err := grant.EncodeHAMi(positional)
		require.NoError(t, err)
		twice, err := grant.DecodeHAMi(again)
		require.NoError(t, err)
		require.Equal(t, positional, twice)
	})
}

// FuzzDecodeGrant is FuzzDecodeHAMi for our own annotation.
func FuzzDecodeGrant(f *testing.F) {
	for _, test := range granttest.MalformedCases(granttest.Node{Name: "node-1", GPU: gpuA, Other: gpuB, Missing: gpuX, GPUMiB: 100_000}) {
		if value, ok := test.Annotations[api.AnnotationGrant]; ok && len(value) < 1000 {
			f.Add(value)
		}
	}
	f.Fuzz(func(t *testing.T, value string) {
		pod, err := grant.DecodeGrant(value)
		if err != nil {
			require.ErrorIs(t, err, grant.ErrMalformed)
			return
		}
		for name, shares := range pod.Containers {
			g := grant.Grant{Container: name, Shares: shares, Source: grant.SourceNamed}
			require.NoError(t, g.Validate())
		}
		again, err := grant.EncodeGrant(pod)
		require.NoError(t, err)
		twice, err := grant.DecodeGrant(again)
		require.NoError(t, err)
		require.Equal(t, pod, twice)
	})
}

func TestFuzzCorpusIsThere(t *testing.T) {
	for _, name := range []string{"FuzzDecodeHAMi", "FuzzDecodeGrant", "FuzzVerify", "FuzzFromReplicas"} {
		files, err := os.ReadDir(filepath.Join("testdata", "fuzz", name))
		require.NoError(t, err)
		assert.NotEmpty(t, files)
	}
}
