// Package quote puts text that a tenant wrote into messages.
package quote

import "fmt"

// MaxBytes bounds what a message repeats of a text.
const MaxBytes = 64

// Short quotes a text, cut after MaxBytes.
func Short(text string) string {
	if len(text) <= MaxBytes {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%q… (%d bytes)", text[:MaxBytes], len(text))
}

// Reading parses a text, and puts it before the error.
func Reading[T any](text string, parse func(string) (T, error)) (T, error) {
	value, err := parse(text)
	if err != nil {
		err = fmt.Errorf("%s %w", Short(text), err)
	}
	return value, err
}
