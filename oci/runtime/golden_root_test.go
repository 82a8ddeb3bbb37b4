//go:build root

package ociruntime

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/ocitest"
)

// Configs that docker 20 and 25 to 28, podman, ctr and the CRI have written, and ones composed after
// docker 24 and 29 and nerdctl (testdata/specs/README.md), and what becomes of them: valid by the runtime spec's schema, and changed in our places only.
func TestGolden(t *testing.T) {
	specs, err := filepath.Glob("testdata/specs/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, specs)
	for _, path := range specs {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			bundle := b.bundle(t, name)
			before := read(t, filepath.Join(bundle, configName))
			require.NoError(t, b.make(bundle))
			made := read(t, filepath.Join(bundle, configName))
			bad, err := ocitest.CheckConfig([]byte(made))
			require.NoError(t, err)
			require.Empty(t, bad)

			changes, err := ocitest.Changes("spec", []byte(before), []byte(made))
			require.NoError(t, err)
			changes = b.stable(changes)
			golden.Check(t, "testdata/golden/"+name+".diff", changes)
		})
	}
}

// Unknown fields stay unchanged, in any depth.
func TestUnknownFieldsSurvive(t *testing.T) {
	b := newBench(t)
	bundle := b.bundle(t, "docker-29")
	require.NoError(t, b.make(bundle))
	var made struct {
		FromTheFuture json.RawMessage
		Mounts        []map[string]json.RawMessage
		Hooks         struct {
			CreateRuntime, Poststop []map[string]json.RawMessage
		}
		Linux struct {
			FromTheFuture json.RawMessage
			Resources     struct{ FromTheFuture json.RawMessage }
		}
		Annotations map[string]string
	}
	text := read(t, filepath.Join(bundle, configName))
	require.NoError(t, json.Unmarshal([]byte(text), &made))
	require.Equal(t, `[1.0,"two"]`, string(made.FromTheFuture))
	require.Equal(t, `{"deep":[{"a":9007199254740993}]}`, string(made.Linux.FromTheFuture))
	require.Equal(t, `{"limit":18446744073709551615}`, string(made.Linux.Resources.FromTheFuture))
	require.Equal(t, `true`, string(made.Mounts[0]["fromTheFuture"]))
	require.Equal(t, `1`, string(made.Hooks.CreateRuntime[0]["fromTheFuture"]))
	require.Len(t, made.Hooks.Poststop, 1)
	require.Equal(t, "<kept & whole>", made.Annotations["io.example/x"])
	require.Contains(t, text, "print('<train & eval>')", "spelled as before")
}
