// Package jsonread reads JSON by hand, for a program that lives for milliseconds: to look
// at a type for the first time takes encoding/json longer than to read a document into it.
//
// A [Reader] either reads a document as encoding/json would read it into an empty value,
// or says by [Reader.Ok] that it didn't: of what isn't valid, or is spelled in a way that
// needs encoding/json's finer rules (names in other case or twice, fractions for whole
// numbers). The caller then asks encoding/json, whose answer or error counts.
//
// It imports encoding/json, and is imported by who starts with each container.
package jsonread

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth is far below encoding/json's.
const maxDepth = 200

// Reader reads one document, value by value.
type Reader struct {
	data  []byte
	at    int
	depth int
	odd   bool
}

// New reads a document.
func New(data []byte) *Reader { return &Reader{data: data} }

// Ok says whether the whole document was read.
func (r *Reader) Ok() bool {
	r.space()
	return !r.odd && r.at == len(r.data)
}

// Fail leaves the document to encoding/json: nothing more is read.
func (r *Reader) Fail() {
	r.odd = true
	r.at = len(r.data)
}

// space skips white space.
func (r *Reader) space() {
	for r.at < len(r.data) {
		switch r.data[r.at] {
		case ' ', '\t', '\r', '\n':
			r.at++
		default:
			return
		}
	}
}

// peek is the first byte of what comes, 0 at the end.
func (r *Reader) peek() byte {
	r.space()
	if r.at >= len(r.data) {
		return 0
	}
	return r.data[r.at]
}

// take skips a byte if it comes.
func (r *Reader) take(b byte) bool {
	if r.peek() != b {
		return false
	}
	r.at++
	return true
}

// Null skips a null. Whatever was to be read is then empty.
func (r *Reader) Null() bool {
	if r.peek() != 'n' {
		return false
	}
	r.word("null")
	return true
}

func (r *Reader) word(word string) {
	if !strings.HasPrefix(string(r.data[r.at:min(len(r.data), r.at+len(word))]), word) {
		r.Fail()
		return
	}
	r.at += len(word)
}

// Object reads an object and calls member for each of its names that is one of names,
// which then has to read the value. The others are skipped. It is called for no null.
func (r *Reader) Object(names []string, member func(name string)) {
	var seen uint64
	r.members(func(name string) {
		for i, known := range names {
			switch {
			case name == known:
				if seen&(1<<i) != 0 {
					r.Fail() // encoding/json would join the two
					return
				}
				seen |= 1 << i
				member(known)
				return
			case len(name) == len(known) && name[0]|0x20 != known[0]|0x20:
			case strings.EqualFold(name, known):
				r.Fail() // encoding/json takes it for known
				return
			}
		}
		r.Skip()
	})
}

// Members reads an object of any names, each of which has to come once.
func (r *Reader) Members(member func(name string)) {
	seen := map[string]bool{}
	r.members(func(name string) {
		if seen[name] {
			r.Fail()
			return
		}
		seen[name] = true
		member(name)
	})
}

func (r *Reader) members(member func(name string)) {
	if r.Null() {
		return
	}
	if !r.enter('{') {
		return
	}
	for first := true; !r.take('}'); first = false {
		if r.odd || !first && !r.take(',') {
			r.Fail()
			return
		}
		name := r.Text()
		if r.odd || name == "" || !r.take(':') {
			r.Fail() // or a name of no letters, which is nobody's
			return
		}
		member(name)
	}
	r.depth--
}

// List reads a list and calls item for each, which has to read it. It is called for no null.
func (r *Reader) List(item func()) {
	if r.Null() || !r.enter('[') {
		return
	}
	for first := true; !r.take(']'); first = false {
		if r.odd || !first && !r.take(',') {
			r.Fail()
			return
		}
		item()
	}
	r.depth--
}

func (r *Reader) enter(begin byte) bool {
	r.depth++
	if r.depth > maxDepth || !r.take(begin) {
		r.Fail()
		return false
	}
	return true
}

// Pointer reads a value that may be missing: nil of a null.
func Pointer[T any](r *Reader, read func() T) *T {
	if r.Null() {
		return nil
	}
	value := read()
	return &value
}

// Texts reads a list of texts: nil of a null.
func (r *Reader) Texts() []string {
	if r.Null() {
		return nil
	}
	texts := []string{}
	r.List(func() { texts = append(texts, r.Text()) })
	return texts
}

// Text reads a text.
func (r *Reader) Text() string {
	raw := r.quoted()
	if r.odd || raw == nil {
		return ""
	}
	inside := raw[1 : len(raw)-1]
	for _, b := range inside {
		if b == '\\' || b >= utf8.RuneSelf {
			var text string
			if json.Unmarshal(raw, &text) != nil {
				r.Fail()
			}
			return text
		}
	}
	return string(inside)
}

// quoted skips a text, or null, of which nothing comes.
func (r *Reader) quoted() []byte {
	if r.Null() {
		return nil
	}
	begin := r.at
	if !r.take('"') {
		r.Fail()
		return nil
	}
	for r.at < len(r.data) {
		b := r.data[r.at]
		r.at++
		switch {
		case b == '"':
			return r.data[begin:r.at]
		case b < ' ':
			r.Fail()
			return nil
		case b == '\\':
			if !r.escape() {
				r.Fail()
				return nil
			}
		}
	}
	r.Fail()
	return nil
}

// escape skips what follows a backslash.
func (r *Reader) escape() bool {
	if r.at >= len(r.data) {
		return false
	}
	b := r.data[r.at]
	r.at++
	if b != 'u' {
		return strings.IndexByte(`"\/bfnrt`, b) >= 0
	}
	for range 4 {
		if r.at >= len(r.data) || !isHex(r.data[r.at]) {
			return false
		}
		r.at++
	}
	return true
}

func isHex(b byte) bool { return isDigit(b) || 'a' <= b|0x20 && b|0x20 <= 'f' }

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// Bool reads a truth value.
func (r *Reader) Bool() bool {
	switch r.peek() {
	case 't':
		r.word("true")
		return true
	case 'f':
		r.word("false")
		return false
	}
	if !r.Null() {
		r.Fail()
	}
	return false
}

// Int reads a whole number of so many bits.
func (r *Reader) Int(bits int) int64 {
	if r.Null() {
		return 0
	}
	n, err := strconv.ParseInt(string(r.number()), 10, bits)
	if err != nil {
		r.Fail()
	}
	return n
}

// Uint reads a whole number of so many bits, without a sign.
func (r *Reader) Uint(bits int) uint64 {
	if r.Null() {
		return 0
	}
	n, err := strconv.ParseUint(string(r.number()), 10, bits)
	if err != nil {
		r.Fail()
	}
	return n
}

// number skips a number.
func (r *Reader) number() []byte {
	r.space()
	begin := r.at
	r.accept('-')
	if !r.accept('0') && !r.digits() {
		r.Fail()
		return nil
	}
	if r.accept('.') && !r.digits() {
		r.Fail()
		return nil
	}
	if r.accept('e') || r.accept('E') {
		_ = r.accept('+') || r.accept('-')
		if !r.digits() {
			r.Fail()
			return nil
		}
	}
	return r.data[begin:r.at]
}

// accept skips a byte if it comes at once.
func (r *Reader) accept(b byte) bool {
	if r.at >= len(r.data) || r.data[r.at] != b {
		return false
	}
	r.at++
	return true
}

func (r *Reader) digits() bool {
	begin := r.at
	for r.at < len(r.data) && isDigit(r.data[r.at]) {
		r.at++
	}
	return r.at > begin
}

// Raw reads a value as it stands.
func (r *Reader) Raw() []byte {
	r.space()
	begin := r.at
	r.Skip()
	if r.odd {
		return nil
	}
	return r.data[begin:r.at]
}

// Decode reads a value by encoding/json, of a type that is seldom there.
func (r *Reader) Decode(into any) {
	if raw := r.Raw(); !r.odd && json.Unmarshal(raw, into) != nil {
		r.Fail()
	}
}

// Skip reads a value and forgets it.
func (r *Reader) Skip() {
	switch r.peek() {
	case '{':
		r.enter('{')
		for first := true; !r.take('}'); first = false {
			if r.odd || !first && !r.take(',') {
				r.Fail()
				return
			}
			if r.peek() != '"' || r.quoted() == nil || !r.take(':') {
				r.Fail()
				return
			}
			r.Skip()
		}
		r.depth--
	case '[':
		r.List(r.Skip)
	case '"':
		r.quoted()
	case 't', 'f':
		r.Bool()
	case 'n':
		r.Null()
	default:
		r.number()
	}
}
