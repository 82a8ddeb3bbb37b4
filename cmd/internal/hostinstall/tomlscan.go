package hostinstall

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// tomlHeader is a line [path].
type tomlHeader struct {
	path       []string
	start, end int // from the '[' to the end of its line
	array      bool
}

// tomlEntry is a key and its value, at any depth of inline tables.
type tomlEntry struct {
	path   []string
	header int // of the section that it is in: an index, -1 before the first
	parent int // the entry whose inline table it is in: an index, -1 for none
	kind   unstable.Kind
	// where the key starts, its value starts, and its value ends
	key, value, end int
}

// tomlScan is where everything in a text is. Tables of arrays are not looked into:
// no setting of ours is in one.
type tomlScan struct {
	headers []tomlHeader
	entries []tomlEntry
}

func scanTOML(text []byte) (tomlScan, error) {
	var (
		s tomlScan
		p unstable.Parser
	)
	p.Reset(text)
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			path, first, last := keyOf(e)
			start := bytes.LastIndexByte(text[:first], '[')
			if e.Kind == unstable.ArrayTable {
				start--
			}
			s.headers = append(s.headers, tomlHeader{path: path, start: start, end: lineEnd(text, last), array: e.Kind == unstable.ArrayTable || s.inArray(path)})
		case unstable.KeyValue:
			header := len(s.headers) - 1
			if header >= 0 && s.headers[header].array {
				continue
			}
			var base []string
			if header >= 0 {
				base = s.headers[header].path
			}
			s.add(text, e, base, header, -1)
		}
	}
	if err := p.Error(); err != nil {
		return s, err
	}
	return s, nil
}

// inArray says whether a path leads through a table of an array.
func (s *tomlScan) inArray(path []string) bool {
	return slices.ContainsFunc(s.headers, func(h tomlHeader) bool { return h.array && isPrefix(h.path, path) })
}

func (s *tomlScan) add(text []byte, e *unstable.Node, base []string, header, parent int) {
	path, _, keyEnd := keyOf(e)
	value := keyEnd
	for text[value] == ' ' || text[value] == '\t' || text[value] == '=' {
		value++
	}
	index := len(s.entries)
	full := slices.Concat(base, path)
	s.entries = append(s.entries, tomlEntry{
		path: full, header: header, parent: parent, kind: e.Value().Kind,
		key: int(e.Raw.Offset), value: value, end: int(e.Raw.Offset + e.Raw.Length),
	})
	if e.Value().Kind != unstable.InlineTable {
		return
	}
	for children := e.Value().Children(); children.Next(); {
		if child := children.Node(); child.Kind == unstable.KeyValue {
			s.add(text, child, full, header, index)
		}
	}
}

// keyOf is the path of a key or header, and where it starts and ends.
func keyOf(n *unstable.Node) (path []string, first, last int) {
	first = -1
	for keys := n.Key(); keys.Next(); {
		k := keys.Node()
		path = append(path, string(k.Data))
		if first < 0 {
			first = int(k.Raw.Offset)
		}
		last = int(k.Raw.Offset + k.Raw.Length)
	}
	return path, first, last
}

// isPrefix says whether a path begins with another, or is it.
func isPrefix(prefix, path []string) bool {
	return len(prefix) <= len(path) && slices.Equal(prefix, path[:len(prefix)])
}

// lineEnd is the position after the line that a position is in.
func lineEnd(text []byte, at int) int {
	if n := bytes.IndexByte(text[at:], '\n'); n >= 0 {
		return at + n + 1
	}
	return len(text)
}

func lineStart(text []byte, at int) int { return bytes.LastIndexByte(text[:at], '\n') + 1 }

// indentation is the white space that a position's line begins with.
func indentation(text []byte, at int) string {
	line := text[lineStart(text, at):at]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// where says where a mistake is, as people count.
func where(line, column int, err error) error {
	return fmt.Errorf("line %d, column %d: %w", line, column, err)
}

// tomlError is an error of the parser, with its place.
func tomlError(err error) error {
	if d := (*toml.DecodeError)(nil); errors.As(err, &d) {
		line, column := d.Position()
		return where(line, column, err)
	}
	return err
}
