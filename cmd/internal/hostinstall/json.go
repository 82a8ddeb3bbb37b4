package hostinstall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// jsonDocument is JSON for dockerd: an empty file is an empty object.
type jsonDocument struct {
	mark []byte
	root hujson.Value
}

var byteOrderMark = []byte("\xef\xbb\xbf")

func parseJSON(text []byte) (document, error) {
	d := &jsonDocument{}
	if bytes.HasPrefix(text, byteOrderMark) {
		d.mark, text = byteOrderMark, text[len(byteOrderMark):]
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	var err error
	if d.root, err = hujson.Parse(bytes.Clone(text)); err != nil {
		return nil, err
	}
	if !d.root.IsStandard() {
		return nil, errors.New("comments and trailing commas are not valid in JSON")
	}
	if _, ok := d.root.Value.(*hujson.Object); !ok {
		return nil, errors.New("it contains no JSON object")
	}
	return d, nil
}

func (d *jsonDocument) text() []byte { return slices.Concat(d.mark, d.root.Pack()) }

func (d *jsonDocument) tree() (map[string]any, error) {
	v, err := d.value(d.root.Pack())
	tree, _ := v.(map[string]any)
	return tree, err
}

func (*jsonDocument) value(raw json.RawMessage) (v any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	return v, decoder.Decode(&v)
}

// object finds the innermost object on the way to a key; rest is the remaining key.
func (d *jsonDocument) object(key []string) (o *hujson.Object, rest []string) {
	o, rest = d.root.Value.(*hujson.Object), key
	for len(rest) > 1 {
		i := member(o, rest[0])
		if i < 0 {
			break
		}
		inner, ok := o.Members[i].Value.Value.(*hujson.Object)
		if !ok {
			break
		}
		o, rest = inner, rest[1:]
	}
	return o, rest
}

func member(o *hujson.Object, name string) int {
	return slices.IndexFunc(o.Members, func(m hujson.ObjectMember) bool {
		literal, _ := m.Name.Value.(hujson.Literal)
		return literal.String() == name
	})
}

func (d *jsonDocument) set(key []string, value any) error {
	o, rest := d.object(key)
	depth := len(key) - len(rest)
	for len(rest) > 1 {
		value, rest = map[string]any{rest[len(rest)-1]: value}, rest[:len(rest)-1]
	}
	i := member(o, rest[0])
	var lead string // white space before the member
	switch eol := newline(d.root.Pack()); {
	case i >= 0:
		lead = string(o.Members[i].Name.BeforeExtra)
	case len(o.Members) > 0:
		lead = string(o.Members[len(o.Members)-1].Name.BeforeExtra)
	case depth == 0 || bytes.Contains(bytes.TrimSpace(d.root.Pack()), []byte("\n")):
		tail := eol + strings.Repeat(d.indent(), depth)
		lead, o.AfterExtra = tail+d.indent(), hujson.Extra(tail)
	}
	encoded, err := d.encode(value, lead)
	if err != nil {
		return err
	}
	if i >= 0 {
		o.Members[i].Value.Value = encoded
		return nil
	}
	o.Members = append(o.Members, hujson.ObjectMember{
		Name:  hujson.Value{BeforeExtra: hujson.Extra(lead), Value: hujson.String(rest[0])},
		Value: hujson.Value{BeforeExtra: hujson.Extra(" "), Value: encoded},
	})
	return nil
}

// encode writes a value on several lines if the member's lead begins a line.
func (d *jsonDocument) encode(value any, lead string) (hujson.ValueTrimmed, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if at := strings.LastIndexByte(lead, '\n'); at >= 0 {
		e.SetIndent(lead[at+1:], d.indent())
	}
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	parsed, err := hujson.Parse(bytes.ReplaceAll(out.Bytes(), []byte("\n"), []byte(newline(d.root.Pack()))))
	return parsed.Value, err
}

func (d *jsonDocument) indent() string {
	if root := d.root.Value.(*hujson.Object); len(root.Members) > 0 {
		lead := string(root.Members[0].Name.BeforeExtra)
		if at := strings.LastIndexByte(lead, '\n'); at >= 0 && len(lead) > at+1 {
			return lead[at+1:]
		}
	}
	return "  "
}

func (d *jsonDocument) remove(key []string) error {
	o, rest := d.object(key)
	i := member(o, rest[0])
	if i < 0 || len(rest) > 1 {
		return fmt.Errorf("%s not found", dotted(key))
	}
	switch {
	case len(o.Members) == 1:
		o.AfterExtra = nil
	case i == 0:
		o.Members[1].Name.BeforeExtra = o.Members[0].Name.BeforeExtra
	}
	o.Members = slices.Delete(o.Members, i, i+1)
	return nil
}
