package slice

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

func TestMainRefuses(t *testing.T) {
	state := t.TempDir()
	bundle := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"root":{"path":"rootfs"}}`), 0o600))
	options := []string{"--state-dir=" + state, "--name=small"}
	running := `{"id":"c1","pid":1,"bundle":"` + bundle + `"}`
	for _, test := range []struct {
		name, stdin string
		args        []string
		want        string
	}{
		{"nothing", "", nil, "must be claim or release"},
		{"no name", running, []string{"claim", "--state-dir=" + state}, "--name=NAME"},
		{"a name that leads elsewhere", running, []string{"claim", "--state-dir=" + state, "--name=../x"}, "--name=NAME"},
		{"a hidden name", running, []string{"claim", "--state-dir=" + state, "--name=.new-1"}, "--name=NAME"},
		{"a directory that is relative", running, []string{"claim", "--state-dir=run", "--name=small"}, "--state-dir=DIR"},
		{"another action", running, append([]string{"take"}, options...), `unknown argument "take"`},
		{"no state", "", append([]string{"claim"}, options...), "read the container's state"},
		{"no bundle", `{"id":"c1","bundle":"/none"}`, append([]string{"claim"}, options...), "read the container's bundle"},
		{"no such slice", running, append([]string{"claim"}, options...), "there is no slice small: run gpuslice cdi generate"},
		{"an id that is a path", `{"id":"../../etc"}`, append([]string{"release"}, options...), "container id"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stderr bytes.Buffer
			require.Equal(t, 1, Main(context.Background(), test.args, strings.NewReader(test.stdin), &stderr))
			require.Contains(t, stderr.String(), test.want)
			require.True(t, strings.HasPrefix(stderr.String(), "gpuslice: "))
		})
	}
	left, err := os.ReadDir(state)
	require.NoError(t, err)
	require.Empty(t, left)
}

// A runtime that failed early calls poststop for what was never claimed.
func TestReleaseOfNothing(t *testing.T) {
	state := t.TempDir()
	var stderr bytes.Buffer
	require.Zero(t, Main(context.Background(), []string{"release", "--state-dir=" + state, "--name=small"}, strings.NewReader(`{"id":"c1"}`), &stderr))
	require.Empty(t, stderr.String())
	left, err := os.ReadDir(state)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestOf(t *testing.T) {
	spec := &rspec.Spec{Process: &rspec.Process{}}
	require.Empty(t, Of(nil))
	require.Empty(t, Of(spec))
	edits := &cdispec.ContainerEdits{Hooks: Hooks("/usr/bin/gpuslice-runtime", "/run/gpuslice", "small")}
	require.NoError(t, (&cdi.ContainerEdits{ContainerEdits: edits}).Validate())
	require.NoError(t, (&cdi.ContainerEdits{ContainerEdits: edits}).Apply(spec))
	require.Equal(t, "small", Of(spec))
	for _, h := range edits.Hooks {
		require.NotEmpty(t, h.Env, "%s: without one it gets the container's", h.HookName)
	}
	spec.Hooks.CreateRuntime = nil
	require.Empty(t, Of(spec), "only the createRuntime hook counts")
	spec.Hooks.CreateRuntime = []rspec.Hook{{Path: "/x", Args: []string{"x", "slice"}}}
	require.Empty(t, Of(spec))
}

// FuzzState: no state on stdin claims a slice that does not exist, or makes a file outside the state directory.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"ociVersion":"1.2.0","id":"a","status":"creating","bundle":"/nowhere"}`), true)
	f.Add([]byte(`{"id":"../..","bundle":"/"}`), false)
	f.Add([]byte(`{`), false)
	f.Fuzz(func(t *testing.T, state []byte, claim bool) {
		dir := t.TempDir()
		action := "release"
		if claim {
			action = actionClaim
		}
		var stderr bytes.Buffer
		code := Main(t.Context(), []string{action, optionState + "=" + filepath.Join(dir, "state"), optionName + "=none"}, bytes.NewReader(state), &stderr)
		require.True(t, code == 1 || !claim)
		require.True(t, code == 1 || stderr.Len() == 0)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			require.Equal(t, "state", e.Name())
		}
	})
}

// FuzzRead: a slice that is read has the requested name.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version":1,"name":"x","shares":[{"uuid":"GPU-a","memoryMiB":1,"cores":2}],"gpus":[{}]}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		require.NoError(t, os.MkdirAll(Dir(dir, "x"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(Dir(dir, "x"), recordName), data, 0o600))
		if s, err := Read(dir, "x"); err == nil {
			require.Equal(t, "x", s.Name)
			_, _ = s.claim("c"), s.capacities()
		}
	})
}
