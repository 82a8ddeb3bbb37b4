package ociruntime

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// object is a JSON object of which only the first level was read.
type object = map[string]json.RawMessage

// patch puts into raw what differs between before and after, and leaves the rest of raw
// as it is: fields that this program doesn't know, in whatever depth, and those that it
// would write differently. raw is a document as it was found, before is what of it this
// program understands, and after is that with changes.
func patch(raw, before, after json.RawMessage) (json.RawMessage, error) {
	if bytes.Equal(before, after) {
		return raw, nil
	}
	switch {
	case isA('{', raw, before, after):
		return patchObject(raw, before, after)
	case isA('[', raw, before, after):
		return patchArray(raw, before, after)
	default:
		return after, nil
	}
}

// isA says whether all the values begin so.
func isA(begin byte, values ...json.RawMessage) bool {
	for _, v := range values {
		if v = bytes.TrimLeft(v, " \t\r\n"); len(v) == 0 || v[0] != begin {
			return false
		}
	}
	return true
}

func patchObject(raw, before, after json.RawMessage) (json.RawMessage, error) {
	var r, b, a object
	if err := unmarshalAll(raw, &r, before, &b, after, &a); err != nil {
		return nil, err
	}
	for name := range b {
		if _, stays := a[name]; !stays {
			delete(r, name)
		}
	}
	for name, value := range a {
		old, had := b[name]
		found, there := r[name]
		if !had || !there {
			if !bytes.Equal(old, value) {
				r[name] = value
			}
			continue
		}
		patched, err := patch(found, old, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r[name] = patched
	}
	return marshal(r)
}

// patchArray keeps of a list the items that have not changed, each as it was found, in
// their new order.
func patchArray(raw, before, after json.RawMessage) (json.RawMessage, error) {
	var r, b, a []json.RawMessage
	if err := unmarshalAll(raw, &r, before, &b, after, &a); err != nil {
		return nil, err
	}
	if len(r) != len(b) {
		return nil, fmt.Errorf("a list of %d items was read as %d", len(r), len(b))
	}
	used := make([]bool, len(b))
	for i, item := range a {
		for j := range b {
			if !used[j] && bytes.Equal(b[j], item) {
				a[i], used[j] = r[j], true
				break
			}
		}
	}
	return marshal(a)
}

// unmarshalAll reads three documents.
func unmarshalAll(raw json.RawMessage, r any, before json.RawMessage, b any, after json.RawMessage, a any) error {
	for _, d := range []struct {
		data json.RawMessage
		into any
	}{{raw, r}, {before, b}, {after, a}} {
		if err := json.Unmarshal(d.data, d.into); err != nil {
			return err
		}
	}
	return nil
}

// marshal writes JSON as runtimes do: "<" stays "<".
func marshal(v any) (json.RawMessage, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}
