package strictjson

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func labels(member string) bool { return member == "labels" }

func TestCheckNames(t *testing.T) {
	for _, good := range []string{`null`, `7`, `{}`, `[{"a":1},{"a":1}]`, `{"labels":{"a":1,"A":2}}`, ` {"a":{"a":[]}} `} {
		require.NoError(t, CheckNames([]byte(good), labels), good)
	}
	for data, want := range map[string]string{
		``:                                   "byte 0: unexpected EOF",
		`{"a":`:                              "unexpected EOF",
		`x`:                                  "byte 0: invalid character",
		`{} {}`:                              "unexpected data after the end",
		`{"a":1,"a":2}`:                      `the file: duplicate key "a"`,
		`{"a":1,"A":2}`:                      `the file: duplicate key "A"`,
		`{"x":[{},{"proces":1,"proceſ":2}]}`: `x[1]: duplicate key "proceſ"`,
		`{"labels":{"a":1,"a":2}}`:           `labels: duplicate key "a"`,
		`{"labels":[{"a":1,"A":2}]}`:         `labels[0]: duplicate key "A"`,
		strings.Repeat("[", 1000):            "nested too deeply",
	} {
		assert.ErrorContains(t, CheckNames([]byte(data), labels), want, data)
	}
}

// FuzzCheckNames: what passes has each name once.
func FuzzCheckNames(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":null}],"labels":{"a":1,"A":2}}`))
	f.Add([]byte(`{"a":1,"a":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if CheckNames(data, labels) == nil {
			require.NoError(t, CheckNames(append([]byte("["), append(data, ']')...), labels), "in a list too")
			require.Error(t, CheckNames([]byte(`{"x":`+string(data)+`,"X":1}`), labels))
		}
	})
}
