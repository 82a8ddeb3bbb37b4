package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
)

// TestAnnotationsThatDisagree: one of the two is left over, and the node is used by ours.
func TestAnnotationsThatDisagree(t *testing.T) {
	second := `{"id":"` + gpuB + `"`
	for _, test := range []struct{ name, hami, want string }{
		{"the same, and other words", strings.ReplaceAll(hamiJSON, `"numa":1`, `"numa":0`), ""},
		{"older and the same", hami9, ""},
		{"not healthy", hami7, ""},
		{"another GPU", strings.Replace(hamiJSON, second, `{"id":"`+gpuC+`"`, 1), "GPU " + gpuB + " is only in the first"},
		{"one more", strings.Replace(hamiJSON, `]`, `,{"id":"`+gpuC+`"}]`, 1), `GPU "` + gpuC + `" is only in the second`},
		{"less memory", strings.Replace(hamiJSON, `32768`, `16384`, 1), "GPU " + gpuA + " has 32768 MiB in the first and 16384 in the second"},
		{"not to be read", "nonsense", "annotation " + api.AnnotationHAMiRegister + `: "nonsense": neither JSON`},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := node(api.AnnotationNodeGPUs, ours, api.AnnotationHAMiRegister, test.hami)
			inventory, _, err := DecodeNode(n)
			require.NoError(t, err)
			require.Len(t, inventory.GPUs, 2)
			require.EqualValues(t, 32768, inventory.GPUs[0].MemoryMiB)
			if test.want == "" {
				require.NoError(t, warningOf(n))
				return
			}
			require.ErrorContains(t, warningOf(n), test.want)
		})
	}
}
