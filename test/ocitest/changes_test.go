package ocitest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChanges(t *testing.T) {
	for _, tt := range []struct{ before, after, want string }{
		{`{"a":1}`, `{ "a": 1 }`, ""},
		{`{"a":{"b":1.0,"c":[1,{"d":2}]}}`, `{"a":{"b":1,"c":[{"d":2},3]}}`, "-x.a.b 1.0\n-x.a.c[] 1\n+x.a.b 1\n x.a.c[] {\"d\":2}\n+x.a.c[] 3\n"},
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`, ""},
		{`{"a":[]}`, `{"a":{}}`, "-x.a []\n+x.a {}\n"},
		{`{}`, `{"a":null,"b":"[]"}`, "-x {}\n+x.a null\n+x.b \"[]\"\n"},
		{`["<"]`, `["\u003c"]`, "-x[] \"<\"\n+x[] \"\\u003c\"\n"},
	} {
		got, err := Changes("x", []byte(tt.before), []byte(tt.after))
		require.NoError(t, err)
		require.Equal(t, tt.want, got, "%s to %s", tt.before, tt.after)
	}
	for _, bad := range []string{``, `{`, `{"a":}`, `{} {}`} {
		_, err := Changes("x", []byte(bad), []byte(`{}`))
		require.Error(t, err, bad)
	}
}

func TestSchemaRefusesWhatItShould(t *testing.T) {
	for _, config := range []string{
		`{}`,
		`{"ociVersion":"1.2.0","root":{"path":7}}`,
		`{"ociVersion":"1.2.0","mounts":[{"source":"/x"}]}`,
		`{"ociVersion":"1.2.0","process":{"cwd":"/","env":["A=1",2]}}`,
		`{"ociVersion":"1.2.0","linux":{"devices":[{"path":"/dev/x","type":"q"}]}}`,
		`{"ociVersion":"1.2.0","linux":{"resources":{"devices":[{"allow":"yes"}]}}}`,
		`{"ociVersion":"1.2.0","hooks":{"createContainer":[{"args":["x"]}]}}`,
		`{"ociVersion":"1.2.0","process":{"cwd":"/","user":{"uid":-1}}}`,
	} {
		bad, err := CheckConfig([]byte(config))
		require.NoError(t, err)
		require.NotEmpty(t, bad, config)
	}
	bad, err := CheckConfig([]byte(`{"ociVersion":"1.2.0"}`))
	require.NoError(t, err)
	require.Empty(t, bad)
}
