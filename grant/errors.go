package grant

import (
	"errors"
	"fmt"
)

// What a caller may branch on with errors.Is. The text of every refusal says
// what was read, what is wrong with it and what to do; these only classify it.
var (
	// ErrMalformed: an annotation, a share or an id is not written as it must be.
	ErrMalformed = errors.New("malformed grant")
	// ErrUnknownGPU: the grant names a GPU that this node does not have.
	ErrUnknownGPU = errors.New("unknown GPU")
	// ErrWrongNode: the grant was made for another node.
	ErrWrongNode = errors.New("grant for another node")
	// ErrSignature: a grant that must be signed isn't, or not for this pod and node.
	ErrSignature = errors.New("grant not signed")
	// ErrAmbiguous: a positional grant can't be tied to one container.
	ErrAmbiguous = errors.New("ambiguous grant")
	// ErrOverbooked: the GPU has not enough memory, compute time or slots left.
	ErrOverbooked = errors.New("GPU overbooked")
)

// refusal is an error whose text is free of its kind's, so that messages read
// well and errors.Is still finds the kind.
type refusal struct {
	kind error
	err  error
}

func (r *refusal) Error() string   { return r.err.Error() }
func (r *refusal) Unwrap() []error { return []error{r.kind, r.err} }

// Errorf makes an error of the given kind. The format may wrap a cause with %w.
func Errorf(kind error, format string, args ...any) error {
	return &refusal{kind: kind, err: fmt.Errorf(format, args...)}
}
