package grant

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	strictjson "sigs.k8s.io/json"

	"github.com/gpuslice/gpuslice/internal/quote"
)

func parseJSON(input string, maxBytes int) (json.RawMessage, error) {
	if len(input) > maxBytes {
		return nil, Errorf(ErrMalformed, "%d bytes: at most %d are read", len(input), maxBytes)
	}
	if !utf8.ValidString(input) {
		return nil, Errorf(ErrMalformed, "not valid UTF-8")
	}
	var value json.RawMessage
	if err := json.Unmarshal([]byte(input), &value); err != nil {
		return nil, Errorf(ErrMalformed, "not valid JSON: %w", err)
	}
	return value, nil
}

// object returns an object's values. It rejects duplicate keys and, if there are known keys, all others.
func object(value json.RawMessage, known ...string) (map[string]json.RawMessage, error) {
	if value[0] != '{' {
		return nil, Errorf(ErrMalformed, "must be an object, not %s", describe(value))
	}
	var values map[string]json.RawMessage
	duplicates, err := strictjson.UnmarshalStrict(value, &values, strictjson.DisallowDuplicateFields)
	if err != nil {
		return nil, Errorf(ErrMalformed, "not valid JSON: %w", err)
	}
	if len(duplicates) > 0 {
		return nil, Errorf(ErrMalformed, "a key is listed twice: keep one: %s", quote.Short(duplicates[0].Error()))
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if len(known) > 0 && !slices.Contains(known, key) {
			return nil, Errorf(ErrMalformed, "unknown field %s: use %s", quote.Short(key), strings.Join(known, ", "))
		}
	}
	return values, nil
}

func array(value json.RawMessage) (elements []json.RawMessage, err error) {
	if value[0] != '[' {
		return nil, Errorf(ErrMalformed, "must be an array, not %s", describe(value))
	}
	if err := json.Unmarshal(value, &elements); err != nil {
		return nil, Errorf(ErrMalformed, "not valid JSON: %w", err)
	}
	return elements, nil
}

func text(value json.RawMessage) (text string, err error) {
	if value[0] != '"' {
		return "", Errorf(ErrMalformed, "must be a string, not %s", describe(value))
	}
	if err := json.Unmarshal(value, &text); err != nil {
		return "", Errorf(ErrMalformed, "not valid JSON: %w", err)
	}
	return text, nil
}

func number(value json.RawMessage, least, most int64) (int64, error) {
	if !bytes.ContainsRune([]byte("-0123456789"), rune(value[0])) {
		return 0, Errorf(ErrMalformed, "must be a number, not %s", describe(value))
	}
	n, err := parseNumber(string(value), least, most)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", quote.Short(string(value)), err)
	}
	return n, nil
}

func describe(value json.RawMessage) string {
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "the string " + quote.Short(string(value[1:len(value)-1]))
	case 'n', 't', 'f':
		return string(value)
	}
	return "the number " + quote.Short(string(value))
}

func parseNumber(text string, least, most int64) (int64, error) {
	if len(text) > 0 && len(text) <= 18 && (text[0] != '0' || text == "0") && strings.Trim(text, "0123456789") == "" {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && least <= n && n <= most {
			return n, nil
		}
	}
	return 0, Errorf(ErrMalformed, "must be a whole number from %d to %d in plain digits", least, most)
}
