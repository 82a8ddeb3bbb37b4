package grant

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/gpuslice/gpuslice/internal/quote"
)

// jsonReader reads JSON token by token. json.Unmarshal is not strict: it accepts duplicate keys, keys in
// another case, and null for any value.
type jsonReader struct {
	decoder *json.Decoder
}

// newJSONReader checks the syntax of the whole input.
func newJSONReader(input string) (*jsonReader, error) {
	if !utf8.ValidString(input) {
		return nil, Errorf(ErrMalformed, "not valid UTF-8")
	}
	data := []byte(input)
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		return nil, Errorf(ErrMalformed, "not valid JSON: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	return &jsonReader{decoder: decoder}, nil
}

func (r *jsonReader) token() (json.Token, error) {
	token, err := r.decoder.Token()
	if err != nil {
		return nil, Errorf(ErrMalformed, "not valid JSON: %w", err)
	}
	return token, nil
}

// object calls field for each key, which must read the value. Duplicate keys are rejected.
func (r *jsonReader) object(field func(key string) error) error {
	token, err := r.token()
	if err != nil {
		return err
	}
	if token != json.Delim('{') {
		return Errorf(ErrMalformed, "must be an object, not %s", describe(token))
	}
	seen := map[string]bool{}
	for r.decoder.More() {
		token, err := r.token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		if seen[key] {
			return Errorf(ErrMalformed, "key %s is there twice: keep one", quote.Short(key))
		}
		seen[key] = true
		if err := field(key); err != nil {
			return err
		}
	}
	_, err = r.token()
	return err
}

// array calls element for each element, which must read it.
func (r *jsonReader) array(element func(i int) error) error {
	token, err := r.token()
	if err != nil {
		return err
	}
	if token != json.Delim('[') {
		return Errorf(ErrMalformed, "must be an array, not %s", describe(token))
	}
	for i := 0; r.decoder.More(); i++ {
		if err := element(i); err != nil {
			return err
		}
	}
	_, err = r.token()
	return err
}

func (r *jsonReader) text() (string, error) {
	token, err := r.token()
	if err != nil {
		return "", err
	}
	text, ok := token.(string)
	if !ok {
		return "", Errorf(ErrMalformed, "must be a string, not %s", describe(token))
	}
	return text, nil
}

// number reads a whole number in plain digits, from least to most.
func (r *jsonReader) number(least, most int64) (int64, error) {
	token, err := r.token()
	if err != nil {
		return 0, err
	}
	digits, ok := token.(json.Number)
	if !ok {
		return 0, Errorf(ErrMalformed, "must be a number, not %s", describe(token))
	}
	n, err := parseNumber(digits.String(), least, most)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", quote.Short(digits.String()), err)
	}
	return n, nil
}

// describe names a token in a message.
func describe(token json.Token) string {
	switch token := token.(type) {
	case nil:
		return "null"
	case string:
		return "the string " + quote.Short(token)
	case json.Delim:
		if token == '{' {
			return "an object"
		}
		return "an array"
	case json.Number:
		return "the number " + quote.Short(token.String())
	default:
		return fmt.Sprintf("%v", token)
	}
}
