package jsonread

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// Writer writes JSON as encoding/json does that leaves "<", ">" and "&" as they are.
type Writer struct {
	Buf []byte
	err error
}

// Err is why a value couldn't be written.
func (w *Writer) Err() error { return w.err }

// Begin begins an object or a list ('{', '['), and End ends one ('}', ']').
func (w *Writer) Begin(b byte) {
	w.item()
	w.Buf = append(w.Buf, b)
}

// End is Begin's.
func (w *Writer) End(b byte) { w.Buf = append(w.Buf, b) }

// Name begins a member of an object.
func (w *Writer) Name(name string) {
	w.Text(name)
	w.Buf = append(w.Buf, ':')
}

// item separates a value from one before it.
func (w *Writer) item() {
	if n := len(w.Buf); n > 0 && w.Buf[n-1] != '{' && w.Buf[n-1] != '[' && w.Buf[n-1] != ':' {
		w.Buf = append(w.Buf, ',')
	}
}

// Raw writes a value that is JSON already.
func (w *Writer) Raw(raw []byte) {
	w.item()
	w.Buf = append(w.Buf, raw...)
}

// Text writes a text.
func (w *Writer) Text(text string) {
	for i := range len(text) {
		if b := text[i]; b < ' ' || b >= 0x7f || b == '"' || b == '\\' {
			w.Value(text)
			return
		}
	}
	w.item()
	w.Buf = append(append(append(w.Buf, '"'), text...), '"')
}

// Texts writes a list of texts.
func (w *Writer) Texts(texts []string) {
	w.Begin('[')
	for _, text := range texts {
		w.Text(text)
	}
	w.End(']')
}

// Bool writes a truth value.
func (w *Writer) Bool(b bool) {
	w.item()
	w.Buf = strconv.AppendBool(w.Buf, b)
}

// Int writes a whole number.
func (w *Writer) Int(n int64) {
	w.item()
	w.Buf = strconv.AppendInt(w.Buf, n, 10)
}

// Uint writes a whole number.
func (w *Writer) Uint(n uint64) {
	w.item()
	w.Buf = strconv.AppendUint(w.Buf, n, 10)
}

// Value writes any value, by encoding/json.
func (w *Writer) Value(v any) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil && w.err == nil {
		w.err = err
	}
	w.Raw(bytes.TrimRight(out.Bytes(), "\n"))
}
