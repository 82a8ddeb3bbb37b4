package request

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuslice/gpuslice/grant/size"
)

// document is a YAML file with the positions of its keys, for errors.
type document struct {
	path   string
	values map[string]*yaml.Node // by the key in full, "maximum.memory"
	keys   map[int]string        // the first key of each line, in full
	errs   []error
}

func newDocument(path string) *document {
	return &document{path: path, values: map[string]*yaml.Node{}, keys: map[int]string{}}
}

// fail adds the error FILE:LINE: KEY: text.
func (d *document) fail(line int, key, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if key != "" {
		text = key + ": " + text
	}
	d.errs = append(d.errs, fmt.Errorf("%s:%d: %s", d.path, line, text))
}

func (d *document) failAt(key, format string, args ...any) {
	d.fail(d.line(key), key, format, args...)
}

func (d *document) line(key string) int {
	if n := d.values[key]; n != nil {
		return n.Line
	}
	return 1
}

func (d *document) decode(data []byte, into *Config) {
	var document, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&document); err != nil {
		if !errors.Is(err, io.EOF) { // only comments
			d.failYAML("invalid YAML: ", err)
		}
		return
	}
	if decoder.Decode(&second) == nil {
		d.fail(second.Line, "", "more than one YAML document: keep one")
		return
	}
	if len(document.Content) == 0 || document.Content[0].Tag == "!!null" {
		return
	}
	d.walk("", document.Content[0])
	decoder = yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil {
		d.failYAML("", err)
	}
}

// walk records the position of each key. It rejects what the decoder would ignore or copy.
func (d *document) walk(key string, n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode || n.Tag == "!!merge":
		d.fail(n.Line, key, "YAML aliases are not supported: write the value")
	case n.Tag == "!!null":
		d.fail(n.Line, key, "has no value: set one, or remove the key")
	case n.Kind == yaml.SequenceNode:
		for _, item := range n.Content {
			d.walk(key, item)
		}
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			name, value := n.Content[i], n.Content[i+1]
			inner := strings.TrimPrefix(key+"."+name.Value, ".")
			if d.keys[name.Line] == "" {
				d.keys[name.Line] = inner
			}
			d.values[inner] = value
			if name.Tag == "!!merge" {
				d.walk(inner, name)
			}
			d.walk(inner, value)
		}
	}
}

// failYAML adds errors of the YAML package.
func (d *document) failYAML(prefix string, err error) {
	texts := []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	var several *yaml.TypeError
	if errors.As(err, &several) {
		texts = several.Errors
	}
	position := regexp.MustCompile(`(?s)^line ([0-9]+): (?:column ([0-9]+): )?(.*)$`)
	unknown := regexp.MustCompile(`^field (.*) not found in type .*$`)
	ownType := regexp.MustCompile(`into (map\[string\])?request\.\w+$`)
	for _, text := range texts {
		line, column := 1, 0
		if m := position.FindStringSubmatch(text); m != nil {
			line, _ = strconv.Atoi(m[1])   // digits
			column, _ = strconv.Atoi(m[2]) // digits or nothing
			text = m[3]
		}
		key := ""
		for at := line; at > 0 && key == ""; at-- {
			key = d.keys[at]
		}
		for name, value := range d.values {
			if value.Line == line && value.Column == column {
				key = name
			}
		}
		text = unknown.ReplaceAllString(text, "no such key: $1")
		text = ownType.ReplaceAllString(text, "into a mapping")
		d.fail(line, key, "%s%s", prefix, text)
	}
}

// UnmarshalYAML reads compute time as ParseCores does.
func (c *Cores) UnmarshalYAML(n *yaml.Node) error { return size.Scalar(n, c, ParseCores) }

// UnmarshalYAML reads GPUs as ParseDevices does.
func (d *Devices) UnmarshalYAML(n *yaml.Node) error { return size.Scalar(n, d, ParseDevices) }

// HighPriority is a priority of 0 in the config.
type HighPriority bool

func (h *HighPriority) UnmarshalYAML(n *yaml.Node) error {
	return size.Scalar(n, h, func(text string) (HighPriority, error) {
		if text != "0" && text != "1" {
			return false, fmt.Errorf("%q must be 0 (high) or 1", text)
		}
		return text == "0", nil
	})
}
