package ocitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"sigs.k8s.io/yaml"
)

// Changes returns what differs between two JSON documents: a line for each value that is not an object and for each
// item of a list, with its path and its JSON as written, members by name. Differing lines are "-" and "+".
func Changes(root string, before, after []byte) (string, error) {
	old, err1 := flat(root, before)
	now, err2 := flat(root, after)
	return DifferingLines(old, now), errors.Join(err1, err2)
}

// DifferingLines returns the lines that differ between two texts, each group of them after the line that precedes it.
func DifferingLines(old, now string) string {
	var text strings.Builder
	lines := strings.SplitAfter(string(diff.Diff("", []byte(old), "", []byte(now))), "\n")
	differs := func(line string) bool { return strings.HasPrefix(line, "+") || strings.HasPrefix(line, "-") }
	for i, line := range lines {
		if i > 2 && (differs(line) || strings.HasPrefix(line, " ") && differs(lines[i+1])) { // 0 to 2: names
			text.WriteString(line)
		}
	}
	return text.String()
}

// CDILines returns a CDI spec, in YAML, with a line for each value and each item of a list, the edits of each device by
// its name.
func CDILines(spec []byte) (string, error) {
	var read struct {
		Version        string          `json:"cdiVersion"`
		Kind           string          `json:"kind"`
		ContainerEdits json.RawMessage `json:"containerEdits"`
		Devices        []struct {
			Name           string          `json:"name"`
			ContainerEdits json.RawMessage `json:"containerEdits"`
		} `json:"devices"`
	}
	if err := yaml.UnmarshalStrict(spec, &read); err != nil {
		return "", err
	}
	text, errs := fmt.Sprintf("cdiVersion %s\nkind %s\n", read.Version, read.Kind), []error(nil)
	edits := func(path string, edits json.RawMessage) {
		if edits != nil {
			lines, err := flat(path, edits)
			text, errs = text+lines, append(errs, err)
		}
	}
	for _, d := range read.Devices {
		text += "device " + d.Name + "\n"
		edits("", d.ContainerEdits)
	}
	text += "all devices\n"
	edits("", read.ContainerEdits)
	return text, errors.Join(errs...)
}

// flat writes a document as the lines that Changes compares.
func flat(path string, document []byte) (string, error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, document); err != nil {
		return "", err
	}
	var text strings.Builder
	err := flatten(&text, path, compact.Bytes())
	return text.String(), err
}

func flatten(text *strings.Builder, path string, value json.RawMessage) error {
	switch {
	case value[0] == '{' && string(value) != "{}":
		var object map[string]json.RawMessage
		if err := json.Unmarshal(value, &object); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if err := flatten(text, path+"."+name, object[name]); err != nil {
				return err
			}
		}
	case value[0] == '[' && string(value) != "[]":
		var list []json.RawMessage
		if err := json.Unmarshal(value, &list); err != nil {
			return err
		}
		for _, item := range list {
			fmt.Fprintf(text, "%s[] %s\n", path, item)
		}
	default:
		fmt.Fprintf(text, "%s %s\n", path, value)
	}
	return nil
}
