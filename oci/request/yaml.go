package request

import (
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/gpuslice/gpuslice/internal/quote"
)

// decoder reads the nodes of a YAML file and collects what is wrong with them. Decoding
// into a struct would not tell the line of a value that is of the right type and makes no
// sense.
type decoder struct {
	path  string
	lines map[string]int // where a key's value is
	errs  []error
}

// fail notes a mistake in a key's value.
func (d *decoder) fail(line int, key, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if key != "" {
		text = key + ": " + text
	}
	d.errs = append(d.errs, fmt.Errorf("%s:%d: %s", d.path, line, text))
}

// field is a key of a mapping of the config.
type field[T any] struct {
	name string
	// doc and schema describe it in the JSON schema.
	doc    string
	schema map[string]any
	// read puts the value into the config, or says what is wrong with it.
	read func(d *decoder, key string, n *yaml.Node, into *T)
}

// yamlLine finds the line in an error of the YAML package.
var yamlLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^yaml: line ([0-9]+): (.*)$`)
})

// parse reads a file's only document. It returns nil where there is none.
func (d *decoder) parse(data []byte) *yaml.Node {
	decoder := yaml.NewDecoder(strings.NewReader(string(data)))
	var document, more yaml.Node
	err := decoder.Decode(&document)
	if err == nil {
		if decoder.Decode(&more) == nil {
			d.fail(more.Line, "", "a second document: one is read")
			return nil
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, io.EOF): // nothing but comments
		return nil
	default:
		line, text := 1, strings.TrimPrefix(err.Error(), "yaml: ")
		if m := yamlLine().FindStringSubmatch(err.Error()); m != nil {
			line, _ = strconv.Atoi(m[1]) // digits
			text = m[2]
		}
		d.fail(line, "", "not valid YAML: %s", text)
		return nil
	}
	if len(document.Content) == 0 || document.Content[0].Tag == "!!null" {
		return nil
	}
	return document.Content[0]
}

// object reads a mapping whose keys are the fields.
func object[T any](d *decoder, key string, n *yaml.Node, fields []field[T], into *T) {
	d.entries(key, n, func(name, full string, at, value *yaml.Node) {
		for _, f := range fields {
			if f.name == name {
				f.read(d, full, value, into)
				return
			}
		}
		var names []string
		for _, f := range fields {
			names = append(names, f.name)
		}
		d.fail(at.Line, full, "no such key: there are %s", strings.Join(names, ", "))
	})
}

// entries calls fn for each entry of a mapping, with the key as it is and in full.
func (d *decoder) entries(key string, n *yaml.Node, fn func(name, full string, at, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		d.fail(n.Line, key, "is %s, and must be keys with values", kind(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		at, value := n.Content[i], n.Content[i+1]
		full := strings.TrimPrefix(key+"."+at.Value, ".")
		if at.Kind != yaml.ScalarNode || at.Tag != "!!str" {
			d.fail(at.Line, key, "a key is %s, and must be a name", kind(at))
			continue
		}
		if first, twice := seen[at.Value]; twice {
			d.fail(at.Line, full, "is on line %d already: keep one", first)
			continue
		}
		seen[at.Value] = at.Line
		d.lines[full] = value.Line
		fn(at.Value, full, at, value)
	}
}

// kind names what a node is, for a message.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias (*" + n.Value + "), which is not read here"
	}
	switch n.Tag {
	case "!!null":
		return "nothing"
	case "!!bool":
		return "the truth value " + quote.Short(n.Value)
	case "!!int", "!!float":
		return "the number " + quote.Short(n.Value)
	case "!!str":
		return "the text " + quote.Short(n.Value)
	}
	return "a value of the type " + quote.Short(n.Tag)
}

// scalar reads a value of one of the tags.
func (d *decoder) scalar(key string, n *yaml.Node, want string, tags ...string) (string, bool) {
	if n.Kind == yaml.ScalarNode {
		for _, tag := range tags {
			if n.Tag == tag {
				return n.Value, true
			}
		}
	}
	d.fail(n.Line, key, "is %s, and must be %s", kind(n), want)
	return "", false
}

// text reads a text that check has nothing against.
func text[T any](at func(*T) *string, check func(string) error) func(*decoder, string, *yaml.Node, *T) {
	return func(d *decoder, key string, n *yaml.Node, into *T) {
		value, ok := d.scalar(key, n, "a text", "!!str")
		if !ok {
			return
		}
		if err := check(value); err != nil {
			d.fail(n.Line, key, "%v", err)
			return
		}
		*at(into) = value
	}
}

// texts reads a list of texts that check has nothing against, each once. Whole numbers are
// texts too where they are written as such (indices of GPUs).
func texts[T any](at func(*T) *[]string, check func(string) error) func(*decoder, string, *yaml.Node, *T) {
	return func(d *decoder, key string, n *yaml.Node, into *T) {
		if n.Kind != yaml.SequenceNode {
			d.fail(n.Line, key, "is %s, and must be a list, [a, b]", kind(n))
			return
		}
		all, seen := []string{}, map[string]bool{}
		for _, item := range n.Content {
			value, ok := d.scalar(key, item, "a list of texts", "!!str", "!!int")
			if !ok {
				continue
			}
			if err := check(value); err != nil {
				d.fail(item.Line, key, "%v", err)
			} else if seen[value] {
				d.fail(item.Line, key, "%s is there twice: keep one", quote.Short(value))
			}
			seen[value] = true
			all = append(all, value)
		}
		*at(into) = all
	}
}

// boolean reads true or false.
func boolean[T any](at func(*T) *bool) func(*decoder, string, *yaml.Node, *T) {
	return func(d *decoder, key string, n *yaml.Node, into *T) {
		value, ok := d.scalar(key, n, "true or false", "!!bool")
		if !ok {
			return
		}
		*at(into) = strings.EqualFold(value, "true")
	}
}

// integer reads a whole number in plain digits.
func integer[T any](at func(*T) *int, least, most int) func(*decoder, string, *yaml.Node, *T) {
	return func(d *decoder, key string, n *yaml.Node, into *T) {
		want := fmt.Sprintf("a whole number from %d to %d", least, most)
		value, ok := d.scalar(key, n, want, "!!int")
		if !ok {
			return
		}
		number, err := strconv.Atoi(value)
		if err != nil || !isNumber(strings.TrimPrefix(value, "-")) || number < least || number > most {
			d.fail(n.Line, key, "%s must be %s", quote.Short(value), want)
			return
		}
		*at(into) = number
	}
}

// number reads a number.
func number[T any](at func(*T) *float64, least, most float64) func(*decoder, string, *yaml.Node, *T) {
	return func(d *decoder, key string, n *yaml.Node, into *T) {
		want := fmt.Sprintf("a number from %v to %v", least, most)
		value, ok := d.scalar(key, n, want, "!!int", "!!float")
		if !ok {
			return
		}
		x, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(x) || x < least || x > most {
			d.fail(n.Line, key, "%s must be %s", quote.Short(value), want)
			return
		}
		*at(into) = x
	}
}

// parsed reads a value by the parser that variables have.
func parsed[T, V any](at func(*T) *V, parse func(string) (V, error)) func(*decoder, string, *yaml.Node, *T) {
	return func(d *decoder, key string, n *yaml.Node, into *T) {
		value, ok := d.scalar(key, n, "a single value", "!!str", "!!int", "!!float")
		if !ok {
			return
		}
		v, err := parse(value)
		if err != nil {
			d.fail(n.Line, key, "%v", err)
			return
		}
		*at(into) = v
	}
}

// nested reads a mapping in a mapping.
func nested[T, V any](at func(*T) *V, fields []field[V]) func(*decoder, string, *yaml.Node, *T) {
	return func(d *decoder, key string, n *yaml.Node, into *T) {
		object(d, key, n, fields, at(into))
	}
}

// oneOf checks a text that is one of some words.
func oneOf(words ...string) func(string) error {
	return func(value string) error {
		for _, word := range words {
			if value == word {
				return nil
			}
		}
		return fmt.Errorf("%s must be one of %s", quote.Short(value), strings.Join(words, ", "))
	}
}
