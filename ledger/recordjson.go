package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/jsonread"
)

// encode writes the record as grant.json has it: as encoding/json would, whose look at the
// types takes a program that books one container longer than to write them.
func (r *record) encode() ([]byte, error) {
	w := recordWriter{new(jsonread.Writer)}
	w.Begin('{')
	w.number("version", int64(r.Version))
	w.Name("sequence")
	w.Uint(r.Sequence)
	w.truth("restored", r.Restored)
	if r.Blocking != nil {
		w.Name("blocking")
		w.Value(r.Blocking)
	}
	w.text("containerID", r.ContainerID)
	w.text("owner", r.Owner)
	w.textIfAny("podUID", r.PodUID)
	w.textIfAny("podNamespace", r.PodNamespace)
	w.textIfAny("podName", r.PodName)
	w.text("container", r.Container)
	w.Name("shares")
	w.shares(r.Shares)
	w.textIfAny("source", string(r.Source))
	if r.Slot != nil {
		w.number("slot", int64(*r.Slot))
	}
	if r.CoreCeiling != 0 {
		w.number("coreCeiling", int64(r.CoreCeiling))
	}
	w.truth("highPriority", r.HighPriority)
	w.textIfAny("mode", r.Mode)
	w.Name("createdAt")
	w.Value(r.CreatedAt)
	w.End('}')

	var data bytes.Buffer
	err := w.Err()
	if err == nil {
		err = json.Indent(&data, w.Buf, "", "  ")
	}
	if err != nil {
		return nil, fmt.Errorf("encode grant.json: %w", err)
	}
	data.WriteByte('\n')
	return data.Bytes(), nil
}

// recordWriter writes members of a record.
type recordWriter struct{ *jsonread.Writer }

func (w recordWriter) text(name, text string) {
	w.Name(name)
	w.Text(text)
}

func (w recordWriter) textIfAny(name, text string) {
	if text != "" {
		w.text(name, text)
	}
}

func (w recordWriter) number(name string, n int64) {
	w.Name(name)
	w.Int(n)
}

// truth writes a member that is there where it is true.
func (w recordWriter) truth(name string, yes bool) {
	if yes {
		w.Name(name)
		w.Bool(true)
	}
}

func (w recordWriter) shares(shares []grant.Share) {
	if shares == nil {
		w.Raw([]byte("null"))
		return
	}
	w.Begin('[')
	for _, share := range shares {
		w.Begin('{')
		w.text("uuid", share.UUID)
		w.number("memoryMiB", share.MemoryMiB)
		w.number("cores", int64(share.CorePercent))
		w.End('}')
	}
	w.End(']')
}

// unmarshal reads grant.json as encoding/json does, and by it where that is not certain.
func (r *record) unmarshal(data []byte) error {
	reader := recordReader{jsonread.New(data)}
	if *r = reader.record(); reader.Ok() {
		return nil
	}
	*r = record{}
	return json.Unmarshal(data, r)
}

// recordReader reads a record.
type recordReader struct{ *jsonread.Reader }

// recordNames are the members of a record.
var recordNames = []string{
	"version", "sequence", "restored", "blocking", "containerID", "owner", "podUID", "podNamespace", "podName",
	"container", "shares", "source", "slot", "coreCeiling", "highPriority", "mode", "createdAt",
}

func (r recordReader) record() (into record) {
	r.Object(recordNames, func(name string) {
		switch name {
		case "version":
			into.Version = int(r.Int(0))
		case "sequence":
			into.Sequence = r.Uint(64)
		case "restored":
			into.Restored = r.Bool()
		case "blocking":
			r.Decode(&into.Blocking)
		case "containerID":
			into.ContainerID = r.Text()
		case "owner":
			into.Owner = r.Text()
		case "podUID":
			into.PodUID = r.Text()
		case "podNamespace":
			into.PodNamespace = r.Text()
		case "podName":
			into.PodName = r.Text()
		case "container":
			into.Container = r.Text()
		case "shares":
			into.Shares = r.shares()
		case "source":
			into.Source = grant.Source(r.Text())
		case "slot":
			if !r.Null() {
				slot := int(r.Int(0))
				into.Slot = &slot
			}
		case "coreCeiling":
			into.CoreCeiling = int(r.Int(0))
		case "highPriority":
			into.HighPriority = r.Bool()
		case "mode":
			into.Mode = r.Text()
		case "createdAt":
			r.Decode(&into.CreatedAt)
		}
	})
	return into
}

func (r recordReader) shares() []grant.Share {
	if r.Null() {
		return nil
	}
	shares := []grant.Share{}
	r.List(func() {
		var share grant.Share
		r.Object([]string{"uuid", "memoryMiB", "cores"}, func(name string) {
			switch name {
			case "uuid":
				share.UUID = r.Text()
			case "memoryMiB":
				share.MemoryMiB = r.Int(64)
			case "cores":
				share.CorePercent = int(r.Int(0))
			}
		})
		shares = append(shares, share)
	})
	return shares
}
