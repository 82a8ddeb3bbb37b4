package ledger

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/jsonread"
)

// anyRecord draws a record with any of its members.
func anyRecord(t *rapid.T) record {
	text := func(name string) string { return rapid.String().Draw(t, name) }
	r := record{
		Version: rapid.Int().Draw(t, "version"), Sequence: rapid.Uint64().Draw(t, "sequence"), Restored: rapid.Bool().Draw(t, "restored"),
		Claim: Claim{
			ContainerID: text("id"), Owner: text("owner"), PodUID: text("uid"), PodNamespace: text("namespace"), PodName: text("pod"),
			Container: text("container"), Source: grant.Source(text("source")), Mode: text("mode"),
			CoreCeiling: rapid.Int().Draw(t, "ceiling"), HighPriority: rapid.Bool().Draw(t, "high"),
			CreatedAt: time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "at"), rapid.Int64Range(0, 999999999).Draw(t, "ns")).UTC(),
		},
	}
	if rapid.Bool().Draw(t, "blocks") {
		r.Blocking = &blocking{Reason: text("reason"), Bare: rapid.Bool().Draw(t, "bare")}
	}
	if rapid.Bool().Draw(t, "has slot") {
		slot := rapid.Int().Draw(t, "slot")
		r.Slot = &slot
	}
	r.Shares = rapid.SliceOf(rapid.Custom(func(t *rapid.T) grant.Share {
		return grant.Share{UUID: rapid.String().Draw(t, "uuid"), MemoryMiB: rapid.Int64().Draw(t, "MiB"), CorePercent: rapid.Int().Draw(t, "cores")}
	})).Draw(t, "shares")
	return r
}

// A record is written and read as encoding/json would, and without it.
func TestRecordJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyRecord(t)
		data, err := r.encode()
		require.NoError(t, err)
		var byType record
		require.NoError(t, json.Unmarshal(data, &byType))
		want, err := json.Marshal(&r)
		require.NoError(t, err)
		require.JSONEq(t, string(want), string(data))
		reader := recordReader{jsonread.New(data)}
		require.Equal(t, byType, reader.record())
		require.True(t, reader.Ok())
	})
}

// Whatever else is there reads as encoding/json reads it.
func FuzzRecordJSON(f *testing.F) {
	f.Add([]byte(`{"version":1,"sequence":2,"containerID":"a","owner":"nri","container":"c","shares":[{"uuid":"GPU-a","memoryMiB":1,"cores":2},null],"slot":3,"createdAt":"2026-01-02T03:04:05Z","blocking":{"reason":"r"}}`))
	f.Add([]byte(`{"Version":1,"Claim":{"owner":"x"},"shares":null,"slot":null,"createdAt":null}`))
	f.Add([]byte(`{"createdAt":"then"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got, want record
		gotErr, wantErr := got.unmarshal(data), json.Unmarshal(data, &want)
		require.Equal(t, wantErr == nil, gotErr == nil)
		require.Equal(t, want, got)
	})
}

// A member that is added to a record has to be added to what reads and writes it.
func TestRecordNames(t *testing.T) {
	var names []string
	for _, of := range []reflect.Type{reflect.TypeFor[record](), reflect.TypeFor[Claim]()} {
		for i := range of.NumField() {
			if name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); name != "" {
				names = append(names, name)
			}
		}
	}
	require.Equal(t, recordNames, names)
	require.Equal(t, 3, reflect.TypeFor[grant.Share]().NumField(), "recordReader.shares, recordWriter.shares")
}
