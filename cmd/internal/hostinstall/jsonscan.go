package hostinstall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// jsonObject is where an object is; its members are in the order of the text.
type jsonObject struct {
	path        []string
	open, close int // of its braces
	members     []jsonMember
}

// jsonMember is where a member starts (its name), and its value starts and ends.
type jsonMember struct {
	name            string
	key, value, end int
}

// scanJSON finds every object that is a member of an object, the outermost first.
// Objects in arrays are not looked into: no setting of ours is in one.
func scanJSON(text []byte) ([]jsonObject, error) {
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		at := len(text)
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			at = max(int(syntax.Offset)-1, 0)
		}
		line, column := position(text, at)
		return nil, where(line, column, err)
	}
	s := jsonScanner{text: text, in: json.NewDecoder(bytes.NewReader(text))}
	s.in.UseNumber()
	first, err := s.in.Token()
	if err != nil {
		return nil, s.located(err)
	}
	if first != json.Delim('{') {
		return nil, errors.New("it holds no JSON object")
	}
	if err := s.object(nil); err != nil {
		return nil, s.located(err)
	}
	return s.objects, nil
}

type jsonScanner struct {
	text    []byte
	in      *json.Decoder
	objects []jsonObject
}

func (s *jsonScanner) at() int { return int(s.in.InputOffset()) }

// located adds the place where the text was read to.
func (s *jsonScanner) located(err error) error {
	line, column := position(s.text, s.at())
	return where(line, column, err)
}

// position counts lines, and bytes in the line, from 1.
func position(text []byte, at int) (line, column int) {
	at = min(at, len(text))
	return bytes.Count(text[:at], []byte("\n")) + 1, at - lineStart(text, at) + 1
}

// object reads an object whose brace was read.
func (s *jsonScanner) object(path []string) error {
	index := len(s.objects)
	s.objects = append(s.objects, jsonObject{path: path, open: s.at() - 1})
	for s.in.More() {
		m, err := s.member(path, index)
		if err != nil {
			return err
		}
		s.objects[index].members = append(s.objects[index].members, m)
	}
	if _, err := s.in.Token(); err != nil {
		return err
	}
	s.objects[index].close = s.at() - 1
	return nil
}

func (s *jsonScanner) member(path []string, object int) (m jsonMember, err error) {
	m.key = s.skip(s.at(), ", \t\r\n")
	token, err := s.in.Token()
	if err != nil {
		return m, err
	}
	name, ok := token.(string)
	if !ok {
		return m, fmt.Errorf("want a name, not %v", token)
	}
	if slices.ContainsFunc(s.objects[object].members, func(o jsonMember) bool { return o.name == name }) {
		return m, fmt.Errorf("%q is there twice: which of them counts is not said anywhere", name)
	}
	m.name, m.value = name, s.skip(s.at(), ": \t\r\n")
	token, err = s.in.Token()
	switch {
	case err != nil:
		return m, err
	case token == json.Delim('{'):
		err = s.object(append(slices.Clone(path), name))
	case token == json.Delim('['):
		err = s.array()
	}
	m.end = s.at()
	return m, err
}

// array reads over the rest of an array.
func (s *jsonScanner) array() error {
	for depth := 1; depth > 0; {
		token, err := s.in.Token()
		if err != nil {
			return err
		}
		switch token {
		case json.Delim('['), json.Delim('{'):
			depth++
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
	}
	return nil
}

func (s *jsonScanner) skip(at int, over string) int {
	return at + len(s.text[at:]) - len(bytes.TrimLeft(s.text[at:], over))
}
