package ocitest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
