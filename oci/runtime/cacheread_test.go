package ociruntime

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/oci"
)

// What is read of the GPUs is what encoding/json reads.
func FuzzReadNode(f *testing.F) {
	f.Add([]byte(nodeJSON))
	for _, text := range []string{
		`{"version":2,"bootID":"b","writtenAt":"2026-01-02T03:04:05.678+02:00","devices":[null,{}],"node":null,"contextMiB":null}`,
		`{"writtenAt":null}`, `{"writtenAt":"yesterday"}`, `{"devices":[{"UUID":"x"}]}`, `{"version":2.0}`, `{"node":{"gpus":[{"mig":[null]}]}}`, `[]`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, done := readNode(data)
		if !done {
			return
		}
		var want nodeFile
		require.NoError(t, json.Unmarshal(data, &want))
		require.Equal(t, want.gpus(), got.gpus())
		require.Equal(t, []any{want.Version, want.BootID}, []any{got.Version, got.BootID})
		require.True(t, want.WrittenAt.Equal(got.WrittenAt))
	})
}

// What is kept from one creation to the next is read again as it was.
func TestReadWhatIsKept(t *testing.T) {
	_, done := readNode([]byte(nodeJSON))
	require.True(t, done, "without encoding/json")

	cache := gpuCache{bootState{ID: "b", Driver: "570", GPUs: "0 1"}, json.RawMessage(`{"version":2}`)}
	data, err := json.Marshal(cache)
	require.NoError(t, err)
	got, done := readGPUCache(data)
	require.True(t, done)
	require.Equal(t, cache, got)

	known := installation{[]string{"a", `b"c`}, Limiter{Library: "/l", Preload: "/p", Fronts: oci.Fronts{CUDA: "/c", NVML: "/n"}}}
	data, err = json.Marshal(known)
	require.NoError(t, err)
	again, done := readInstallation(data)
	require.True(t, done)
	require.Equal(t, known, again)
	_, done = readInstallation(data[:len(data)-1])
	require.False(t, done, "a part of it")
}
