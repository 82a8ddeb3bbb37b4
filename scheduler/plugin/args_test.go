package plugin

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpuslice/gpuslice/scheduler/request"
)

func TestArgs(t *testing.T) {
	const head = `"apiVersion":"gpuslice.io/v1","kind":"GPUSliceArgs"`
	for _, tc := range []struct{ name, text, problem string }{
		{"none", ``, ""},
		{"defaults", `{` + head + `}`, ""},
		{"all", `{` + head + `,"resources":{"count":"a/b","priority":"-"},"defaults":{"memoryMiB":5,"cores":10,"count":2,"memoryFactor":3},
			"nodePolicy":"spread","gpuPolicy":"binpack","annotate":"Binding","groupTimeout":"30s","gpuQuota":"kube-system/gpuquota","legacyMetrics":["hami"]}`, ""},
		{"metrics under unknown names", `{` + head + `,"legacyMetrics":["hami","dcgm"]}`, "only hami is supported"},
		{"no version", `{"kind":"GPUSliceArgs"}`, `apiVersion "", kind "GPUSliceArgs": must be gpuslice.io/v1, GPUSliceArgs`},
		{"another version", `{"apiVersion":"gpuslice.io/v2","kind":"GPUSliceArgs"}`, "must be gpuslice.io/v1"},
		{"a field that there is not", `{` + head + `,"nodepolicies":"spread"}`, `unknown field "nodepolicies"`},
		{"a field with the wrong case", `{` + head + `,"NodePolicy":"spread"}`, `unknown field "NodePolicy"`},
		{"no JSON", `{`, "unexpected"},
		{"annotate", `{` + head + `,"annotate":"Bind"}`, `annotate: "Bind": must be Patch or Binding`},
		{"a timeout that is longer than a reservation", `{` + head + `,"groupTimeout":"1h"}`, "groupTimeout: 1h0m0s: must be from 1s to 10m0s"},
		{"a negative timeout", `{` + head + `,"groupTimeout":"-1s"}`, "groupTimeout"},
		{"a quota without a namespace", `{` + head + `,"gpuQuota":"gpuquota"}`, "must be namespace/name"},
		{"cores", `{` + head + `,"defaults":{"cores":101}}`, "defaults.cores: 101"},
		{"memory", `{` + head + `,"defaults":{"memoryMiB":-1}}`, "defaults.memoryMiB: -1"},
		{"a score of more than all", `{` + head + `,"scoreWithPreferences":101}`, "scoreWithPreferences: 101: must be percent, 1 to 100"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args, err := ParseArgs(&runtime.Unknown{Raw: []byte(tc.text)})
			if tc.problem != "" {
				require.ErrorContains(t, err, tc.problem)
				require.ErrorContains(t, err, "args of plugin GPUSlice: ")
				return
			}
			require.NoError(t, err)
			require.NotEmpty(t, args.Annotate)
		})
	}
	_, err := ParseArgs(&v1.Pod{})
	require.ErrorContains(t, err, "unsupported type *v1.Pod")
}

func TestArgsDefaults(t *testing.T) {
	args, err := ParseArgs(nil)
	require.NoError(t, err)
	require.Equal(t, request.DefaultOptions(), args.Engine().Request)
	require.Equal(t, AnnotateWithBinding, args.Annotate)
	require.Equal(t, 10, args.ScoreWithPreferences)
	require.Equal(t, time.Minute, args.GroupTimeout.Duration)
}

func TestReadArgs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "args.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("apiVersion: gpuslice.io/v1\nkind: GPUSliceArgs\nresources: {count: a/b, priority: \"-\"}\ndefaults: {memoryFactor: 3}\ngpuQuota: x/y\n")
	args, err := ReadArgs(path)
	require.NoError(t, err)
	o := args.Engine().Request
	require.Equal(t, "a/b", o.Names.Count)
	require.Empty(t, o.Names.Priority, "- is no resource")
	require.Equal(t, "nvidia.com/gpumem", o.Names.Memory)
	require.EqualValues(t, 3, o.MemoryFactor)
	require.Equal(t, 1, o.DefaultCount)
	namespace, name := args.GPUQuotaName()
	require.Equal(t, "x y", namespace+" "+name)

	write("apiVersion: gpuslice.io/v1\nkind: GPUSliceArgs\nkind: GPUSliceArgs\n")
	_, err = ReadArgs(path)
	require.ErrorContains(t, err, "kind", "a key twice")
	_, err = ReadArgs(path + "x")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Args that are read are within their bounds, and the engine takes them.
func FuzzParseArgs(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"gpuslice.io/v1","kind":"GPUSliceArgs","groupTimeout":"30s","defaults":{"cores":10},"nodePolicy":"spread"}`))
	f.Add([]byte(`{"apiVersion":"gpuslice.io/v1","kind":"GPUSliceArgs","groupTimeout":"-1s"}`))
	f.Add([]byte(`{"defaults":{"cores":1e99}}`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, data []byte) {
		args, err := ParseArgs(&runtime.Unknown{Raw: data})
		if err != nil {
			require.Nil(t, args)
			return
		}
		require.True(t, args.GroupTimeout.Duration >= time.Second && args.GroupTimeout.Duration <= maxGroupTimeout)
		require.True(t, args.Defaults.Cores >= 0 && args.Defaults.Cores <= 100)
		_ = args.Engine()
	})
}
