package webhook

import (
	"maps"
	"slices"
	"strings"
)

// operation is an operation of a JSON patch (RFC 6902). "add" also replaces.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func add(path string, value any) operation { return operation{"add", path, value} }

// token escapes a name for a path (RFC 6901).
var token = strings.NewReplacer("~", "~0", "/", "~1").Replace

// addToMap adds entries to the map at the path and creates the map if needed.
func addToMap(path string, there bool, entries map[string]string) []operation {
	if len(entries) == 0 {
		return nil
	}
	if !there {
		return []operation{add(path, entries)}
	}
	var patch []operation
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		patch = append(patch, add(path+"/"+token(key), entries[key]))
	}
	return patch
}
