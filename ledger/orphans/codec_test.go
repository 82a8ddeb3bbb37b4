package orphans

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/jsonread"
)

// A record is written and read as encoding/json would.
func TestRecordCodec(t *testing.T) {
	for _, record := range []Record{
		{},
		{Nonce: "N", Roots: []string{}},
		{
			Nonce: "N", Creator: Process{7, 1 << 63}, CreatorUntil: 9, PIDNamespace: MachineNamespace, Roots: []string{"/run/runc", `/a "b"/<é>`},
			Runtime: "/usr/bin/runc", Bundle: "/b\n", Slice: "small",
		},
	} {
		data, err := record.encode()
		require.NoError(t, err)
		var again Record
		require.NoError(t, json.Unmarshal(data, &again))
		r := jsonread.New(data)
		require.Equal(t, again, readRecord(r))
		require.True(t, r.Ok())
		if record.Roots == nil {
			record.Roots = []string{}
		}
		require.Equal(t, record, again)
		require.Contains(t, string(data), "\n  \"nonce\"", "for people")
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"nonce":"a","creator":{"pid":1,"start":2},"roots":null,"Slice":"x"}`))
	f.Add([]byte(`{"nonce":"a","creator":null,"pidNamespace":-1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := Decode(data)
		var want Record
		wantErr := json.Unmarshal(data, &want)
		require.Equal(t, wantErr == nil, err == nil)
		require.Equal(t, want, got)
	})
}

// What is found out quickly is what is found out.
func FuzzInit(f *testing.F) {
	for _, text := range []string{
		`{"id":"web","init_process_pid":20,"init_process_start":200,"config":{`, `{"pid": 20, "process-start-time": 200, "x": 1}`,
		`{"pid":20`, `{"pid":20,"pid":21,"process-start-time":2}`, `{"config":{"pid":7},"pid":8,"init_process_start":9}`, `{"PID":1,"pid":2,"process-start-time":3}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, quickly := quickInit(data); quickly {
			want, known := decodeInit(json.NewDecoder(bytes.NewReader(data)))
			require.True(t, known)
			require.Equal(t, want, got)
		}
	})
}

// A member that is added to a record has to be added to what reads and writes it.
func TestRecordHasNoMore(t *testing.T) {
	require.Equal(t, 8, reflect.TypeFor[Record]().NumField(), "encode, readRecord")
	require.Equal(t, 2, reflect.TypeFor[Process]().NumField())
}
