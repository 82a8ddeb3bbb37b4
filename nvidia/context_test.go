package nvidia

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContextMiB(t *testing.T) {
	for model, want := range map[string]int64{
		"NVIDIA H200": 520, "NVIDIA A100-SXM4-80GB": 420, "Tesla T4": 105, "NVIDIA L40S": 520, "": 520,
	} {
		require.Equal(t, want, GPU{Model: model}.ContextMiB(), model)
	}
}
