package logonce

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWarn(t *testing.T) {
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil))
	var p Problem
	for _, test := range []struct {
		err   error
		lines int
	}{
		{nil, 0}, {errors.New("a"), 1}, {errors.New("a"), 1}, {errors.New("b"), 2}, {nil, 2}, {errors.New("b"), 3}, {context.Canceled, 3},
	} {
		p.Warn(log, "it fails", test.err)
		assert.Equal(t, test.lines, strings.Count(text.String(), "\n"), test.err)
	}
}

func TestReport(t *testing.T) {
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil))
	var p Problem
	for _, err := range []error{nil, errors.New("a"), errors.New("a"), errors.New("b"), nil, nil} {
		p.Report(log, "it fails", "it works", err)
	}
	assert.Regexp(t, `(?s)^[^\n]*ERROR[^\n]*"it fails" error=a\n[^\n]*"it fails" error=b\n[^\n]*INFO[^\n]*"it works"\n$`, text.String())
}
