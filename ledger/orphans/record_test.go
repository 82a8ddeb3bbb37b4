package orphans

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRecordIsReadAsWritten(t *testing.T) {
	for _, record := range []Record{
		{Nonce: "N", Roots: []string{}},
		{
			Nonce: "N", Creator: Process{7, 1 << 63}, CreatorUntil: 9, PIDNamespace: MachineNamespace, Roots: []string{"/run/runc", `/a "b"/<é>`},
			Runtime: "/usr/bin/runc", Bundle: "/b\n", Slice: "small",
		},
	} {
		dir := t.TempDir()
		require.NoError(t, record.Write(dir))
		again, err := Read(dir)
		require.NoError(t, err)
		require.Equal(t, record, again)
		data, err := os.ReadFile(filepath.Join(dir, RecordName))
		require.NoError(t, err)
		require.Contains(t, string(data), "\n  \"nonce\"", "indented")
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"nonce":"a","creator":{"pid":1,"start":2},"roots":null,"Slice":"x"}`))
	f.Add([]byte(`{"nonce":"a","creator":null,"pidNamespace":-1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, RecordName), data, 0o600))
		r, err := Read(dir)
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged)
			require.Empty(t, r)
			return
		}
		require.NotEmpty(t, r.Nonce)
	})
}

func FuzzInit(f *testing.F) {
	for _, text := range []string{
		`{"id":"web","init_process_pid":20,"init_process_start":200,"config":{`, `{"pid": 20, "process-start-time": 200, "x": 1}`,
		`{"pid":20`, `{"pid":20,"pid":21,"process-start-time":2}`, `{"config":{"pid":7},"pid":8,"init_process_start":9}`, `{"PID":1,"pid":2,"process-start-time":3}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, known := decodeInit(json.NewDecoder(bytes.NewReader(data)))
		require.Equal(t, got.PID != 0, known)
	})
}
