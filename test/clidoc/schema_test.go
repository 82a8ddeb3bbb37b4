package clidoc

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestSchema(t *testing.T) {
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Int("replicas", 10, "`containers` of a GPU")
	f.Float64("scaling", 0.5, "a factor")
	f.Bool("quiet", true, "print nothing")
	f.Duration("every", time.Minute, "a time")
	f.StringSlice("dirs", []string{"/a", "/b,c"}, "directories")
	f.UintSlice("numbers", nil, "numbers")
	f.String("config", "", "a file")
	f.Bool("help", false, "help")
	got, err := json.Marshal(Schema(f, "t", map[string]map[string]any{"replicas": {"maximum": 20}}))
	require.NoError(t, err)
	require.JSONEq(t, `{"$schema":"https://json-schema.org/draft/2020-12/schema","title":"t","type":"object","additionalProperties":false,"properties":{
		"replicas":{"type":"integer","default":10,"maximum":20,"description":"containers of a GPU"},
		"scaling":{"type":"number","default":0.5,"description":"a factor"},
		"quiet":{"type":"boolean","default":true,"description":"print nothing"},
		"every":{"type":"string","default":"1m0s","description":"a time"},
		"dirs":{"type":"array","items":{"type":"string"},"default":["/a","/b,c"],"description":"directories"},
		"numbers":{"type":"array","items":{"type":"integer","minimum":0},"default":[],"description":"numbers"}}}`, string(got))
}
