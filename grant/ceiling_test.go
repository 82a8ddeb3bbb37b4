package grant_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

func TestCoreCeiling(t *testing.T) {
	const ours, tencent = api.AnnotationCoreCeiling, api.AnnotationVcudaCoreCeiling
	for _, test := range []struct {
		description string
		annotations map[string]string
		want        int
		says        string
	}{
		{"none", nil, 0, ""},
		{"ours", map[string]string{ours: "80"}, 80, ""},
		{"gpu-manager's", map[string]string{tencent: "100"}, 100, ""},
		{"both", map[string]string{ours: "60", tencent: "70"}, 60, ""},
		{"a bad one beside a good one", map[string]string{ours: "", tencent: "70"}, 0, ours},
		{"nothing", map[string]string{ours: "0"}, 0, "1 to 100 percent"},
		{"too much", map[string]string{tencent: "101"}, 0, tencent},
		{"not a number", map[string]string{ours: "50%"}, 0, "plain digits"},
		{"a second spelling", map[string]string{ours: "050"}, 0, "plain digits"},
	} {
		t.Run(test.description, func(t *testing.T) {
			got, err := grant.CoreCeiling(grant.Pod{Namespace: "ns", Name: "p", Annotations: test.annotations}, "main")
			if test.says != "" {
				require.ErrorIs(t, err, grant.ErrMalformed)
				require.ErrorContains(t, err, test.says)
				require.ErrorContains(t, err, `pod ns/p container "main"`)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
}
