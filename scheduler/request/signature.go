package request

import (
	"strconv"

	"github.com/gpuslice/gpuslice/scheduler"
)

var kindLetters = [...]byte{scheduler.App: 'a', scheduler.Init: 'i', scheduler.Sidecar: 's'}

// sign lists each container's kind and amounts, "a1m3000c30;", then the rules, each a key and a quoted
// text.
func (r *Request) sign() string {
	var space [96]byte
	b := space[:0]
	for i := range r.Containers {
		c := &r.Containers[i]
		if c.GPUs == 0 {
			continue
		}
		b = append(b, kindLetters[r.Kinds[i]])
		b = strconv.AppendInt(b, int64(c.GPUs), 10)
		if c.MemoryMiB > 0 {
			b = strconv.AppendInt(append(b, 'm'), c.MemoryMiB, 10)
		} else {
			b = strconv.AppendInt(append(b, '%'), int64(c.MemoryPercent), 10)
		}
		b = append(strconv.AppendInt(append(b, 'c'), int64(c.Cores), 10), ';')
	}
	s := &r.Rules
	b = signList(b, 't', s.UseTypes)
	b = signList(b, 'T', s.AvoidTypes)
	b = signList(b, 'u', s.UseUUIDs)
	b = signList(b, 'U', s.AvoidUUIDs)
	if s.NUMABind {
		b = append(b, 'n')
	}
	b = signList(b, 'm', s.Modes)
	b = signText(b, 'N', s.NodePolicy)
	b = signText(b, 'C', s.GPUPolicy)
	return string(signText(b, 'W', s.Weights))
}

func signList(b []byte, key byte, entries []string) []byte {
	for _, e := range entries {
		b = signText(b, key, e)
	}
	return b
}

func signText(b []byte, key byte, text string) []byte {
	if text == "" {
		return b
	}
	return strconv.AppendQuote(append(b, key), text)
}
