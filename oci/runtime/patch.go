package ociruntime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/internal/jsonread"
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
	r, rawErr := membersOf(raw)
	b, beforeErr := membersOf(before)
	a, afterErr := membersOf(after)
	if err := errors.Join(rawErr, beforeErr, afterErr); err != nil {
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
	var w jsonread.Writer
	w.Begin('{')
	for _, name := range slices.Sorted(maps.Keys(r)) {
		w.Name(name)
		w.Raw(r[name])
	}
	w.End('}')
	return w.Buf, w.Err()
}

// patchArray keeps of a list the items that have not changed, each as it was found, in
// their new order.
func patchArray(raw, before, after json.RawMessage) (json.RawMessage, error) {
	r, rawErr := itemsOf(raw)
	b, beforeErr := itemsOf(before)
	a, afterErr := itemsOf(after)
	if err := errors.Join(rawErr, beforeErr, afterErr); err != nil {
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
	var w jsonread.Writer
	w.Begin('[')
	for _, item := range a {
		w.Raw(item)
	}
	w.End(']')
	return w.Buf, w.Err()
}

// membersOf reads the first level of an object.
func membersOf(data json.RawMessage) (object, error) {
	o, r := object{}, jsonread.New(data)
	r.Members(func(name string) { o[name] = r.Raw() })
	if r.Ok() {
		return o, nil
	}
	o = nil
	err := json.Unmarshal(data, &o)
	return o, err
}

// itemsOf reads the first level of a list.
func itemsOf(data json.RawMessage) (items []json.RawMessage, err error) {
	r := jsonread.New(data)
	r.List(func() { items = append(items, r.Raw()) })
	if r.Ok() {
		return items, nil
	}
	items = nil // they are parts of data
	err = json.Unmarshal(data, &items)
	return items, err
}
