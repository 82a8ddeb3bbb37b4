package verify

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A container's program can write anything in place of its probe: it ends a wait for an answer in time.
func FuzzAnswersOfProbes(f *testing.F) {
	for _, text := range []string{"", "ready\n", "end=0\n", "gpus=1\nend=0\n", "=\n=\n", "end", "end=x\n", strings.Repeat("x", 1<<17)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := newProbe(strings.NewReader(text), io.Discard, func() error { return nil })
		_, err := p.until(t.Context(), "ready")
		if err == nil {
			assert.True(t, strings.Contains(text, "ready=") || strings.Contains(text, "end="))
		}
		assert.NoError(t, p.close())
	})
}
