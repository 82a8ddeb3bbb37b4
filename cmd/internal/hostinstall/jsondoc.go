package hostinstall

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// jsonFormat is JSON as dockerd reads it: an empty file is an empty object.
type jsonFormat struct{}

var byteOrderMark = []byte("\xef\xbb\xbf") // which dockerd reads over

func (jsonFormat) parse(text []byte) (document, error) {
	d := &jsonDocument{}
	if bytes.HasPrefix(text, byteOrderMark) {
		d.mark, text = byteOrderMark, text[len(byteOrderMark):]
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	return d, d.become(text)
}

func (jsonFormat) encode(value any) (string, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return strings.TrimSuffix(out.String(), "\n"), err
}

func (jsonFormat) decode(raw string) (any, error) {
	var v any
	d := json.NewDecoder(strings.NewReader(raw))
	d.UseNumber()
	return v, d.Decode(&v)
}

// jsonDocument edits the text by the positions that the decoder tells.
type jsonDocument struct {
	mark    []byte
	data    []byte
	mean    map[string]any
	objects []jsonObject
}

func (d *jsonDocument) become(text []byte) error {
	objects, err := scanJSON(text)
	if err != nil {
		return err
	}
	v, err := jsonFormat{}.decode(string(text))
	if err != nil {
		return err
	}
	d.data, d.objects, d.mean = text, objects, v.(map[string]any)
	return nil
}

func (d *jsonDocument) text() []byte         { return slices.Concat(d.mark, d.data) }
func (d *jsonDocument) tree() map[string]any { return d.mean }

// find is the innermost object around a key, and the key's place in it or -1.
func (d *jsonDocument) find(key []string) (object jsonObject, member int) {
	for _, o := range d.objects { // the outer ones come first
		if len(o.path) < len(key) && isPrefix(o.path, key) {
			object = o
		}
	}
	if len(object.path) < len(key)-1 {
		return object, -1
	}
	return object, slices.IndexFunc(object.members, func(m jsonMember) bool { return m.name == key[len(key)-1] })
}

func (d *jsonDocument) raw(key []string) (string, bool) {
	o, i := d.find(key)
	if i < 0 {
		return "", false
	}
	return string(d.data[o.members[i].value:o.members[i].end]), true
}

// section is TOML's.
func (d *jsonDocument) section([]string) (there, empty bool) { return false, false }

func (d *jsonDocument) splice(from, to int, with string) error {
	return d.become(slices.Concat(d.data[:from], []byte(with), d.data[to:]))
}

func (d *jsonDocument) set(key []string, raw string) error {
	o, i := d.find(key)
	if i >= 0 {
		return d.splice(o.members[i].value, o.members[i].end, raw)
	}
	missing := key[len(o.path):]
	if len(o.members) == 0 {
		return d.fill(o, missing, raw)
	}
	// A member looks as the one before it.
	last := len(o.members) - 1
	lead := string(d.data[o.open+1 : o.members[last].key])
	if last > 0 {
		_, lead, _ = strings.Cut(string(d.data[o.members[last-1].end:o.members[last].key]), ",")
	}
	end := o.members[last].end
	return d.splice(end, end, ","+lead+d.member(missing, raw, lead))
}

// fill writes the first member of an object.
func (d *jsonDocument) fill(o jsonObject, missing []string, raw string) error {
	lead, tail := "", ""
	if len(o.path) == 0 || bytes.ContainsRune(bytes.TrimSpace(d.data), '\n') {
		tail = d.newline() + strings.Repeat(d.unit(), len(o.path))
		lead = tail + d.unit()
	}
	return d.splice(o.open+1, o.close, lead+d.member(missing, raw, lead)+tail)
}

// member writes a member, with the objects that lead to its value. lead is the white
// space before it; without a line's end in it, it is written on one line.
func (d *jsonDocument) member(key []string, raw, lead string) string {
	name, err := jsonFormat{}.encode(key[0])
	if err != nil { // strings are always encoded
		name = `""`
	}
	if len(key) == 1 {
		return name + ": " + raw
	}
	if !strings.Contains(lead, "\n") {
		return name + ": {" + d.member(key[1:], raw, lead) + "}"
	}
	inner := lead + d.unit()
	return name + ": {" + inner + d.member(key[1:], raw, inner) + lead + "}"
}

// unit is the text's step of indentation.
func (d *jsonDocument) unit() string {
	if root := d.objects[0]; len(root.members) > 0 {
		lead := d.data[root.open+1 : root.members[0].key]
		if at := bytes.LastIndexByte(lead, '\n'); at >= 0 && len(lead) > at+1 {
			return string(lead[at+1:])
		}
	}
	return "  "
}

func (d *jsonDocument) newline() string {
	if bytes.Contains(d.data, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

func (d *jsonDocument) remove(key []string) error {
	o, i := d.find(key)
	switch {
	case i < 0:
		return errors.New("it is not there")
	case i > 0:
		return d.splice(o.members[i-1].end, o.members[i].end, "")
	case len(o.members) > 1:
		return d.splice(o.members[0].key, o.members[1].key, "")
	}
	return d.splice(o.open+1, o.close, "")
}
