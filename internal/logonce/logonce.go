// Package logonce logs a repeated error once.
package logonce

import (
	"context"
	"errors"
	"log/slog"
)

// Problem is the last state of something that is tried again and again. The zero value is ready.
type Problem struct{ last string }

// Warn logs err if it is another error than that of the last call. nil, and the end of a context, reset it.
func (p *Problem) Warn(log *slog.Logger, message string, err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	if text != "" && text != p.last {
		log.Warn(message, "error", err)
	}
	p.last = text
}

// Report logs err as Warn does, but as an error, and logs the end of the problem.
func (p *Problem) Report(log *slog.Logger, bad, good string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == p.last:
	case err != nil:
		log.Error(bad, "error", err)
	default:
		log.Info(good)
	}
	p.last = text
}
