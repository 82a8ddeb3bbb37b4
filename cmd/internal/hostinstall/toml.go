package hostinstall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// tomlDocument edits TOML at the parser's offsets. It skips arrays of tables.
type tomlDocument struct {
	data    []byte
	headers []tomlHeader
	entries []tomlEntry
}

type tomlHeader struct {
	path       []string
	start, end int // from '[' to the end of the line
	array      bool
}

type tomlEntry struct {
	path            []string
	header          int  // index of its section; -1 before the first
	inline          bool // it is inside an inline table
	key, value, end int  // offsets
}

func parseTOML(text []byte) (document, error) {
	d := &tomlDocument{}
	return d, d.parse(text)
}

func (d *tomlDocument) parse(text []byte) error {
	var tree map[string]any
	if err := toml.Unmarshal(text, &tree); err != nil {
		return tomlError(err)
	}
	next := tomlDocument{data: text}
	var p unstable.Parser
	p.Reset(text)
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			path, first, last := keyOf(e)
			inArray := func(h tomlHeader) bool { return h.array && isPrefix(h.path, path) }
			next.headers = append(next.headers, tomlHeader{
				path: path, start: bytes.LastIndexByte(text[:first], '['), end: lineEnd(text, last),
				array: e.Kind == unstable.ArrayTable || slices.ContainsFunc(next.headers, inArray),
			})
		case unstable.KeyValue:
			header := len(next.headers) - 1
			if header < 0 {
				next.add(e, nil, header, false)
			} else if h := next.headers[header]; !h.array {
				next.add(e, h.path, header, false)
			}
		}
	}
	if err := p.Error(); err != nil {
		return tomlError(err)
	}
	*d = next
	return nil
}

func (d *tomlDocument) add(e *unstable.Node, base []string, header int, inline bool) {
	path, _, value := keyOf(e)
	value += len(d.data[value:]) - len(bytes.TrimLeft(d.data[value:], " \t="))
	path = slices.Concat(base, path)
	d.entries = append(d.entries, tomlEntry{
		path: path, header: header, inline: inline,
		key: int(e.Raw.Offset), value: value, end: int(e.Raw.Offset + e.Raw.Length),
	})
	if e.Value().Kind != unstable.InlineTable {
		return
	}
	for children := e.Value().Children(); children.Next(); {
		if child := children.Node(); child.Kind == unstable.KeyValue {
			d.add(child, path, header, true)
		}
	}
}

func keyOf(n *unstable.Node) (path []string, first, last int) {
	for keys := n.Key(); keys.Next(); {
		k := keys.Node()
		if path = append(path, string(k.Data)); len(path) == 1 {
			first = int(k.Raw.Offset)
		}
		last = int(k.Raw.Offset + k.Raw.Length)
	}
	return path, first, last
}

func (d *tomlDocument) text() []byte { return d.data }

func (d *tomlDocument) tree() (map[string]any, error) {
	tree := map[string]any{}
	return tree, toml.Unmarshal(d.data, &tree)
}

func (*tomlDocument) value(raw json.RawMessage) (any, error) {
	v, err := (*jsonDocument)(nil).value(raw)
	return withNumbers(v), err
}

func withNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = withNumbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = withNumbers(v[k])
		}
	}
	return v
}

func (d *tomlDocument) splice(from, to int, with string) error {
	return d.parse(slices.Concat(d.data[:from], []byte(with), d.data[to:]))
}

// set replaces a value, or adds a line to its section, or a section at the end. The latter is not valid TOML if an inline table or
// keys with dots define the table: [verified] then fails.
func (d *tomlDocument) set(key []string, value any) error {
	if table, ok := value.(map[string]any); ok {
		return d.setTable(key, table)
	}
	raw, err := encodeTOML(value)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(d.entries, func(e tomlEntry) bool { return slices.Equal(e.path, key) }); i >= 0 {
		return d.splice(d.entries[i].value, d.entries[i].end, raw)
	}
	table, line := key[:len(key)-1], keyText(key[len(key)-1:])+" = "+raw+newline(d.data)
	section := slices.IndexFunc(d.headers, func(h tomlHeader) bool { return !h.array && slices.Equal(h.path, table) })
	last := d.last(section)
	switch {
	case (section >= 0 || len(table) == 0) && last != nil:
		return d.addLine(last.end, d.indentation(last.key)+line)
	case section >= 0:
		return d.addLine(d.headers[section].start, d.indentation(d.headers[section].start)+"  "+line)
	case len(table) == 0 && len(d.headers) > 0: // TOML allows it only before the first section
		return d.splice(0, 0, line)
	case len(table) == 0:
		return d.addLine(len(d.data), line)
	case len(bytes.TrimSpace(d.data)) == 0:
		return d.splice(len(d.data), len(d.data), "["+keyText(table)+"]"+newline(d.data)+"  "+line)
	}
	return d.addLine(len(d.data), newline(d.data)+"["+keyText(table)+"]"+newline(d.data)+"  "+line)
}

// setTable replaces a table. Values precede tables.
func (d *tomlDocument) setTable(key []string, table map[string]any) error {
	if err := d.remove(key); err != nil {
		return err
	}
	keys := slices.Sorted(maps.Keys(table))
	isTable := func(k string) bool { _, ok := table[k].(map[string]any); return ok }
	for _, tables := range []bool{false, true} {
		for _, k := range keys {
			if isTable(k) == tables {
				if err := d.set(append(slices.Clone(key), k), table[k]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (d *tomlDocument) last(header int) *tomlEntry {
	for i := range slices.Backward(d.entries) {
		if e := &d.entries[i]; e.header == header && !e.inline {
			return e
		}
	}
	return nil
}

func (d *tomlDocument) addLine(at int, line string) error {
	end := lineEnd(d.data, at)
	if end > 0 && d.data[end-1] != '\n' {
		line = newline(d.data) + line
	}
	return d.splice(end, end, line)
}

func (d *tomlDocument) indentation(at int) string {
	line := d.data[lineStart(d.data, at):at]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// remove deletes a value, or a table with all its sections.
func (d *tomlDocument) remove(key []string) error {
	var err error
	for err == nil {
		i := slices.IndexFunc(d.entries, func(e tomlEntry) bool { return isPrefix(key, e.path) })
		if i >= 0 {
			e := d.entries[i]
			if e.inline {
				return errors.New("it is in an inline table")
			}
			err = d.splice(lineStart(d.data, e.key), lineEnd(d.data, e.end), "")
			continue
		}
		i = slices.IndexFunc(d.headers, func(h tomlHeader) bool { return !h.array && isPrefix(key, h.path) })
		if i < 0 {
			break
		}
		start := lineStart(d.data, d.headers[i].start)
		if before := lineStart(d.data, max(0, start-1)); start > 0 && len(bytes.TrimSpace(d.data[before:start])) == 0 {
			start = before
		}
		err = d.splice(start, d.headers[i].end, "")
	}
	return err
}

func encodeTOML(value any) (string, error) {
	out, err := toml.Marshal(map[string]any{"v": value})
	if err != nil {
		return "", err
	}
	raw, ok := strings.CutPrefix(strings.TrimSuffix(string(out), "\n"), "v = ")
	if !ok || strings.Contains(raw, "\n") {
		return "", fmt.Errorf("%v does not fit on one line", value)
	}
	return raw, nil
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// keyText quotes a key where necessary.
func keyText(key []string) string {
	parts := slices.Clone(key)
	for i, k := range key {
		if quoted, err := encodeTOML(k); err == nil && !bareKey.MatchString(k) {
			parts[i] = quoted
		}
	}
	return strings.Join(parts, ".")
}

func lineEnd(text []byte, at int) int {
	if n := bytes.IndexByte(text[at:], '\n'); n >= 0 {
		return at + n + 1
	}
	return len(text)
}

func lineStart(text []byte, at int) int { return bytes.LastIndexByte(text[:at], '\n') + 1 }

func tomlError(err error) error {
	if d := (*toml.DecodeError)(nil); errors.As(err, &d) {
		line, column := d.Position()
		return fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	return err
}
