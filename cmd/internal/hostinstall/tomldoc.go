package hostinstall

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// tomlFormat is TOML as containerd and podman read it.
type tomlFormat struct{}

func (tomlFormat) parse(text []byte) (document, error) {
	d := &tomlDocument{}
	return d, d.become(text)
}

// encode writes a value on one line.
func (tomlFormat) encode(value any) (string, error) {
	out, err := toml.Marshal(map[string]any{"v": value})
	if err != nil {
		return "", err
	}
	raw, ok := strings.CutPrefix(strings.TrimSuffix(string(out), "\n"), "v = ")
	if !ok || strings.Contains(raw, "\n") {
		return "", fmt.Errorf("%v is not a plain value", value)
	}
	return raw, nil
}

func (tomlFormat) decode(raw string) (any, error) {
	var v map[string]any
	if err := toml.Unmarshal([]byte("v = "+raw), &v); err != nil {
		return nil, err
	}
	return v["v"], nil
}

// tomlDocument edits the text by the positions that the parser tells.
type tomlDocument struct {
	data []byte
	mean map[string]any
	scan tomlScan
}

// become takes a new text, if it is one.
func (d *tomlDocument) become(text []byte) error {
	mean := map[string]any{}
	if err := toml.Unmarshal(text, &mean); err != nil {
		return tomlError(err)
	}
	scan, err := scanTOML(text)
	if err != nil {
		return tomlError(err)
	}
	d.data, d.mean, d.scan = text, mean, scan
	return nil
}

func (d *tomlDocument) text() []byte         { return d.data }
func (d *tomlDocument) tree() map[string]any { return d.mean }

func (d *tomlDocument) find(key []string) *tomlEntry {
	for i, e := range d.scan.entries {
		if slices.Equal(e.path, key) {
			return &d.scan.entries[i]
		}
	}
	return nil
}

func (d *tomlDocument) raw(key []string) (string, bool) {
	e := d.find(key)
	if e == nil {
		return "", false
	}
	return string(d.data[e.value:e.end]), true
}

func (d *tomlDocument) section(table []string) (there, empty bool) {
	i := d.header(table)
	return i >= 0, i >= 0 && d.last(i) == nil
}

// splice puts text in the place of what is between two positions.
func (d *tomlDocument) splice(from, to int, with string) error {
	return d.become(slices.Concat(d.data[:from], []byte(with), d.data[to:]))
}

// set knows the ways in which TOML can hold a key: a value that is there; an inline
// table; a section of the key's table; keys with dots that make that table; and if
// there is none of these, a new section at the end.
func (d *tomlDocument) set(key []string, raw string) error {
	if e := d.find(key); e != nil {
		return d.splice(e.value, e.end, raw)
	}
	if i := d.inlineAround(key); i >= 0 {
		return d.addInline(i, key, raw)
	}
	if i := d.header(key[:len(key)-1]); i >= 0 {
		return d.addToSection(i, key, raw)
	}
	if e, shared := d.dottedSibling(key); e != nil && shared >= d.sectionsReach(key[:len(key)-1]) {
		return d.addLine(e.end, indentation(d.data, e.key), key[d.depth(e.header):], raw)
	}
	if len(key) == 1 {
		return d.addTop(key, raw)
	}
	return d.addSection(key, raw)
}

// inlineAround is the innermost inline table that the key would be in: an index.
func (d *tomlDocument) inlineAround(key []string) int {
	best := -1
	for i, e := range d.scan.entries {
		if e.kind == unstable.InlineTable && len(e.path) < len(key) && isPrefix(e.path, key) &&
			(best < 0 || len(e.path) > len(d.scan.entries[best].path)) {
			best = i
		}
	}
	return best
}

func (d *tomlDocument) addInline(i int, key []string, raw string) error {
	table := d.scan.entries[i]
	member := keyText(key[len(table.path):]) + " = " + raw
	if members := d.members(i); len(members) > 0 {
		end := members[len(members)-1].end
		return d.splice(end, end, ", "+member)
	}
	return d.splice(table.value+1, table.value+1, " "+member+" ")
}

// members are the entries right inside an inline table.
func (d *tomlDocument) members(i int) (members []tomlEntry) {
	for _, e := range d.scan.entries {
		if e.parent == i {
			members = append(members, e)
		}
	}
	return members
}

// header finds the header of a table: an index.
func (d *tomlDocument) header(table []string) int {
	return slices.IndexFunc(d.scan.headers, func(h tomlHeader) bool { return !h.array && slices.Equal(h.path, table) })
}

// depth is how long the path of a section is.
func (d *tomlDocument) depth(header int) int {
	if header < 0 {
		return 0
	}
	return len(d.scan.headers[header].path)
}

// last is the last line's entry of a section.
func (d *tomlDocument) last(header int) *tomlEntry {
	for i := len(d.scan.entries) - 1; i >= 0; i-- {
		if e := &d.scan.entries[i]; e.header == header && e.parent < 0 {
			return e
		}
	}
	return nil
}

func (d *tomlDocument) addToSection(i int, key []string, raw string) error {
	h := d.scan.headers[i]
	if e := d.last(i); e != nil {
		return d.addLine(e.end, indentation(d.data, e.key), key[len(h.path):], raw)
	}
	return d.addLine(h.start, indentation(d.data, h.start)+"  ", key[len(h.path):], raw)
}

// dottedSibling is the entry that shares most of the key, in a table that keys with
// dots have made: TOML forbids a section for such a table.
func (d *tomlDocument) dottedSibling(key []string) (best *tomlEntry, shared int) {
	for i := range d.scan.entries {
		e := &d.scan.entries[i]
		if e.parent >= 0 {
			continue
		}
		n := common(key[:len(key)-1], e.path[:len(e.path)-1])
		if n > d.depth(e.header) && n >= shared {
			best, shared = e, n
		}
	}
	return best, shared
}

// sectionsReach is how much of a table's path sections have made. What they make below
// a table of keys with dots is theirs.
func (d *tomlDocument) sectionsReach(table []string) (reach int) {
	for _, h := range d.scan.headers {
		if !h.array {
			reach = max(reach, common(table, h.path))
		}
	}
	return reach
}

// common is how much two paths share from their start.
func common(a, b []string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// addLine puts a line after the one that a position is in.
func (d *tomlDocument) addLine(at int, indent string, key []string, raw string) error {
	end := lineEnd(d.data, at)
	line := indent + keyText(key) + " = " + raw + d.newline()
	if end > 0 && d.data[end-1] != '\n' {
		line = d.newline() + line
	}
	return d.splice(end, end, line)
}

// addTop adds a setting that is in no table: it has to be before the first section.
func (d *tomlDocument) addTop(key []string, raw string) error {
	if e := d.last(-1); e != nil {
		return d.addLine(e.end, indentation(d.data, e.key), key, raw)
	}
	if len(d.scan.headers) == 0 {
		return d.splice(len(d.data), len(d.data), d.freshLine()+keyText(key)+" = "+raw+d.newline())
	}
	return d.splice(0, 0, keyText(key)+" = "+raw+d.newline())
}

func (d *tomlDocument) addSection(key []string, raw string) error {
	var gap string
	if len(bytes.TrimSpace(d.data)) > 0 {
		gap = d.freshLine() + d.newline()
	}
	table, nl := key[:len(key)-1], d.newline()
	return d.splice(len(d.data), len(d.data), gap+"["+keyText(table)+"]"+nl+"  "+keyText(key[len(table):])+" = "+raw+nl)
}

// freshLine ends a last line that has no end.
func (d *tomlDocument) freshLine() string {
	if len(d.data) > 0 && !bytes.HasSuffix(d.data, []byte("\n")) {
		return d.newline()
	}
	return ""
}

func (d *tomlDocument) newline() string {
	if bytes.Contains(d.data, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

func (d *tomlDocument) remove(key []string) error {
	for i, e := range d.scan.entries {
		if !slices.Equal(e.path, key) {
			continue
		}
		if e.parent >= 0 {
			return d.removeInline(i)
		}
		return d.splice(lineStart(d.data, e.key), lineEnd(d.data, e.end), "")
	}
	i := d.header(key)
	if i < 0 {
		return errors.New("it is not written as a value or a section")
	}
	h := d.scan.headers[i]
	start := lineStart(d.data, h.start)
	// The empty line that parts the section from the one before goes with it.
	if before := lineStart(d.data, max(0, start-1)); start > 0 && len(bytes.TrimSpace(d.data[before:start])) == 0 {
		start = before
	}
	return d.splice(start, h.end, "")
}

func (d *tomlDocument) removeInline(i int) error {
	e := d.scan.entries[i]
	table := d.scan.entries[e.parent]
	members := d.members(e.parent)
	at := slices.IndexFunc(members, func(m tomlEntry) bool { return m.key == e.key })
	switch {
	case at > 0:
		return d.splice(members[at-1].end, e.end, "")
	case len(members) > 1:
		return d.splice(e.key, members[1].key, "")
	}
	return d.splice(table.value+1, table.end-1, "")
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// keyText writes a key, quoted where it has to be.
func keyText(key []string) string {
	parts := make([]string, len(key))
	for i, k := range key {
		parts[i] = k
		if !bareKey.MatchString(k) {
			quoted, err := toml.Marshal(map[string]string{"v": k})
			if err != nil { // of a string that is not UTF-8, which no parsed key is
				continue
			}
			parts[i] = strings.TrimSuffix(strings.TrimPrefix(string(quoted), "v = "), "\n")
		}
	}
	return strings.Join(parts, ".")
}
