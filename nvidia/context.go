package nvidia

import "strings"

// contextMiB are what a CUDA context takes of a GPU's memory, in MiB, by a word of
// the model's name. It varies with driver and program: these are typical values of
// CUDA 12, a start until it is measured on the node.
var contextMiB = []struct {
	word string
	mib  int64
}{
	{"H200", 520},
	{"H100", 520},
	{"A100", 420},
	{"T4", 105},
}

// otherContextMiB is for models that the table doesn't have: rather too much than
// too little, for what is not counted is the neighbours'.
const otherContextMiB = 520

// ContextMiB is what a context is expected to take of the GPU, in MiB.
func (c GPU) ContextMiB() int64 {
	for _, m := range contextMiB {
		if strings.Contains(c.Model, m.word) {
			return m.mib
		}
	}
	return otherContextMiB
}
