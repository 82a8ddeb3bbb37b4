package orphans

import (
	"bytes"
	"encoding/json"

	"github.com/gpuslice/gpuslice/internal/jsonread"
)

// encode writes the record as encoding/json does, indented for people.
func (r Record) encode() ([]byte, error) {
	var w jsonread.Writer
	text := func(name, value string) {
		w.Name(name)
		w.Text(value)
	}
	w.Begin('{')
	text("nonce", r.Nonce)
	w.Name("creator")
	w.Begin('{')
	w.Name("pid")
	w.Int(int64(r.Creator.PID))
	w.Name("start")
	w.Uint(r.Creator.Start)
	w.End('}')
	if r.CreatorUntil != 0 {
		w.Name("creatorUntil")
		w.Int(r.CreatorUntil)
	}
	w.Name("pidNamespace")
	w.Uint(r.PIDNamespace)
	w.Name("roots")
	w.Texts(r.Roots)
	text("runtime", r.Runtime)
	text("bundle", r.Bundle)
	if r.Slice != "" {
		text("slice", r.Slice)
	}
	w.End('}')
	var data bytes.Buffer
	err := w.Err()
	if err == nil {
		err = json.Indent(&data, w.Buf, "", "  ")
	}
	data.WriteByte('\n')
	return data.Bytes(), err
}

// Decode reads what Record.Write has written, without encoding/json where that is certain to say the same.
func Decode(data []byte) (Record, error) {
	r := jsonread.New(data)
	record := readRecord(r)
	if r.Ok() {
		return record, nil
	}
	record = Record{}
	err := json.Unmarshal(data, &record)
	return record, err
}

func readRecord(r *jsonread.Reader) (record Record) {
	r.Object([]string{"nonce", "creator", "creatorUntil", "pidNamespace", "roots", "runtime", "bundle", "slice"}, func(name string) {
		switch name {
		case "nonce":
			record.Nonce = r.Text()
		case "creator":
			r.Object([]string{"pid", "start"}, func(name string) {
				if name == "pid" {
					record.Creator.PID = int(r.Int(0))
				} else {
					record.Creator.Start = r.Uint(64)
				}
			})
		case "creatorUntil":
			record.CreatorUntil = r.Int(64)
		case "pidNamespace":
			record.PIDNamespace = r.Uint(64)
		case "roots":
			record.Roots = r.Texts()
		case "runtime":
			record.Runtime = r.Text()
		case "bundle":
			record.Bundle = r.Text()
		case "slice":
			record.Slice = r.Text()
		}
	})
	return record
}
