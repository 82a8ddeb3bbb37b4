package ociruntime

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// patch applies the difference of before and after, which are encoded from Go types, to the original
// document raw. Unknown fields and the spelling of values stay, in any depth.
func patch(raw, before, after json.RawMessage) (json.RawMessage, error) {
	if bytes.Equal(before, after) {
		return raw, nil
	}
	if o := decodeEach[map[string]json.RawMessage](raw, before, after); o[0] != nil && o[1] != nil && o[2] != nil {
		return patchObject(o[0], o[1], o[2])
	}
	if l := decodeEach[[]json.RawMessage](raw, before, after); l[0] != nil && l[1] != nil && l[2] != nil {
		return patchList(l[0], l[1], l[2])
	}
	return after, nil
}

// decodeEach decodes documents to a type; those of another type are nil.
func decodeEach[T any](documents ...json.RawMessage) []T {
	values := make([]T, len(documents))
	for i, document := range documents {
		if json.Unmarshal(document, &values[i]) != nil {
			clear(values[i : i+1])
		}
	}
	return values
}

func patchObject(raw, before, after map[string]json.RawMessage) (json.RawMessage, error) {
	for name := range before {
		if _, stays := after[name]; !stays {
			delete(raw, name)
		}
	}
	for name, value := range after {
		old, had := before[name]
		found, there := raw[name]
		if !had || !there {
			if !bytes.Equal(old, value) {
				raw[name] = value
			}
			continue
		}
		patched, err := patch(found, old, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		raw[name] = patched
	}
	return marshal(raw)
}

// patchList keeps each unchanged item as it was found.
func patchList(raw, before, after []json.RawMessage) (json.RawMessage, error) {
	if len(raw) != len(before) {
		return nil, fmt.Errorf("a list of %d items was decoded as %d", len(raw), len(before))
	}
	used := make([]bool, len(before))
	for i, item := range after {
		for j := range before {
			if !used[j] && bytes.Equal(before[j], item) {
				after[i], used[j] = raw[j], true
				break
			}
		}
	}
	return marshal(after)
}

func marshal(v any) (json.RawMessage, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // as container runtimes do
	err := enc.Encode(v)
	return bytes.TrimRight(out.Bytes(), "\n"), err
}
