package nodeconfig

import (
	"errors"
	"reflect"
	"slices"
	"strings"
)

// Fields are the JSON names of an entry's fields.
func Fields() []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[entry]()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Update is one look of Run's.
func (w *Watcher) Update() { w.update() }

// Decode reads a file for all nodes.
func Decode(data []byte) (File, error) {
	f, others, err := DecodeFor(data, "")
	return f, errors.Join(err, others)
}
