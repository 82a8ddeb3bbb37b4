// Package strictjson rejects JSON that programs read differently.
package strictjson

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gpuslice/gpuslice/internal/quote"
)

const maxDepth = 100

// CheckNames returns an error for data that is not one JSON value, and for an object with a name twice, in any case:
// encoding/json uses the last, other programs another. exact reports whether the case matters in a member's object.
func CheckNames(data []byte, exact func(member string) bool) error {
	c := checker{json.NewDecoder(bytes.NewReader(data)), exact}
	c.UseNumber()
	err := c.value("", maxDepth)
	if twice, is := errors.AsType[*duplicate](err); is {
		return twice
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		if _, end := c.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("unexpected data after the end")
		}
	}
	if err != nil {
		return fmt.Errorf("byte %d: %w", c.InputOffset(), err)
	}
	return nil
}

type duplicate struct{ at, key string }

func (d *duplicate) Error() string {
	return fmt.Sprintf("%s: duplicate key %s", cmp.Or(strings.TrimPrefix(d.at, "."), "the file"), quote.Short(d.key))
}

// inside adds the element of the path where a value is.
func inside(element string, err error) error {
	if twice, is := errors.AsType[*duplicate](err); is {
		twice.at = element + twice.at
	}
	return err
}

type checker struct {
	*json.Decoder
	exact func(member string) bool
}

func (c checker) value(member string, depth int) error {
	if depth == 0 {
		return errors.New("nested too deeply")
	}
	token, err := c.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('['):
		for i := 0; c.More(); i++ {
			if err := c.value("", depth-1); err != nil {
				return inside(fmt.Sprintf("[%d]", i), err)
			}
		}
	case json.Delim('{'):
		seen := map[string]bool{}
		for c.More() {
			token, err := c.Token()
			if err != nil {
				return err
			}
			name := token.(string)
			key := name
			if !c.exact(member) {
				key = strings.ToLower(strings.ToUpper(name)) // as encoding/json folds names
			}
			if seen[key] {
				return &duplicate{key: name}
			}
			seen[key] = true
			if err := c.value(name, depth-1); err != nil {
				return inside("."+name, err)
			}
		}
	default:
		return nil
	}
	_, err = c.Token()
	return err
}
