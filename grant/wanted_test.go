package grant_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

func TestDecodeResize(t *testing.T) {
	wanted, err := grant.DecodeResize(`{"main":{"memoryMiB":8000,"cores":0},"side":{"cores":30,"gpu":"` + gpuA + `"}}`)
	require.NoError(t, err)
	assert.Equal(t, []string{"main", "side"}, grant.Containers(wanted))
	had := []grant.Share{{UUID: gpuA, MemoryMiB: 1, CorePercent: 1}, {UUID: gpuB, MemoryMiB: 2, CorePercent: 2}}
	shares, err := wanted["main"].Of(had)
	require.NoError(t, err)
	assert.Equal(t, []grant.Share{{UUID: gpuA, MemoryMiB: 8000}, {UUID: gpuB, MemoryMiB: 8000}}, shares)
	shares, err = wanted["side"].Of(had)
	require.NoError(t, err)
	assert.Equal(t, []grant.Share{{UUID: gpuA, MemoryMiB: 1, CorePercent: 30}, had[1]}, shares)
	_, err = wanted["side"].Of(had[1:])
	require.ErrorIs(t, err, grant.ErrMalformed)
	again, err := grant.EncodeResize(wanted)
	require.NoError(t, err)
	same, err := grant.DecodeResize(again)
	require.NoError(t, err)
	assert.Equal(t, wanted, same)
}

func TestMalformedResizesAreRefused(t *testing.T) {
	for value, says := range map[string]string{
		``:                                        "not valid JSON",
		`{}`:                                      "names no container",
		`[]`:                                      "must be an object",
		`{"main":{}}`:                             "neither memoryMiB nor cores",
		`{"main":{"gpu":"` + gpuA + `"}}`:         "neither memoryMiB nor cores",
		`{"main":{"memoryMiB":0}}`:                "whole number from 1",
		`{"main":{"memoryMiB":"8000"}}`:           "must be a number",
		`{"main":{"memoryMiB":1e3}}`:              "plain digits",
		`{"main":{"memoryMiB":16777217}}`:         "to 16777216",
		`{"main":{"cores":101}}`:                  "0 to 100",
		`{"main":{"cores":-1}}`:                   "0 to 100",
		`{"main":{"cores":1,"cores":2}}`:          "twice",
		`{"main":{"core":1}}`:                     `unknown field "core"`,
		`{"main":{"cores":1,"gpu":"GPU-0"}}`:      "must be a GPU's UUID",
		`{"Main":{"cores":1}}`:                    "RFC 1123",
		`{"main":{"cores":1},"main":{"cores":2}}`: "twice",
		`{"main":{"cores":1}} x`:                  "not valid JSON",
		`{"main":null}`:                           "not null",
		`{"main":{"cores":1}` + strings.Repeat(" ", 1<<14): "at most 16384 are read",
	} {
		_, err := grant.DecodeResize(value)
		require.ErrorIs(t, err, grant.ErrMalformed, value)
		assert.ErrorContains(t, err, says, value)
	}
}

func FuzzDecodeResize(f *testing.F) {
	f.Add(`{"main":{"memoryMiB":8000,"cores":30}}`)
	f.Fuzz(func(t *testing.T, value string) {
		wanted, err := grant.DecodeResize(value)
		if err != nil {
			require.ErrorIs(t, err, grant.ErrMalformed)
			return
		}
		again, err := grant.EncodeResize(wanted)
		require.NoError(t, err)
		same, err := grant.DecodeResize(again)
		require.NoError(t, err)
		require.Equal(t, wanted, same)
	})
}

func TestGenerationOfAGrant(t *testing.T) {
	pod := &grant.PodGrant{Node: "n", Generation: 3, Containers: map[string][]grant.Share{"main": {{UUID: gpuA, MemoryMiB: 1, CorePercent: 1}}}}
	value, err := grant.EncodeGrant(pod)
	require.NoError(t, err)
	same, err := grant.DecodeGrant(value)
	require.NoError(t, err)
	assert.Equal(t, pod, same)
	pod.Generation = 0
	value, err = grant.EncodeGrant(pod)
	require.NoError(t, err)
	assert.NotContains(t, value, "generation", "as before there were any, for agents that know of none")
	_, err = grant.DecodeGrant(strings.Replace(value, `"node"`, `"generation":0,"node"`, 1))
	require.ErrorIs(t, err, grant.ErrMalformed)
}
