package plugin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
)

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
