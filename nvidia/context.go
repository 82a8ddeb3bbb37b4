package nvidia

import "strings"

// contextMiB is the memory of a CUDA context in MiB, by a word in the model's name: typical values
// of CUDA 12. They vary with driver and program.
var contextMiB = []struct {
	word string
	mib  int64
}{
	{"H200", 520},
	{"H100", 520},
	{"A100", 420},
	{"T4", 105},
}

// otherContextMiB is for other models. It is high because memory that is not counted is taken from
// other containers.
const otherContextMiB = 520

// ContextMiB is the expected memory of one CUDA context, in MiB.
func (c GPU) ContextMiB() int64 {
	for _, m := range contextMiB {
		if strings.Contains(c.Model, m.word) {
			return m.mib
		}
	}
	return otherContextMiB
}
