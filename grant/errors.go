package grant

import (
	"errors"
	"fmt"
)

// Kinds of errors, for errors.Is. The texts of the errors have the details.
var (
	// ErrMalformed: an annotation, a share or an ID has a wrong form.
	ErrMalformed = errors.New("malformed grant")
	// ErrUnknownGPU: this node does not have the GPU.
	ErrUnknownGPU = errors.New("unknown GPU")
	ErrWrongNode  = errors.New("grant for another node")
	// ErrSignature: a required signature is missing or invalid.
	ErrSignature = errors.New("grant not signed")
	// ErrAmbiguous: a positional grant matches several containers.
	ErrAmbiguous = errors.New("ambiguous grant")
	// ErrOverbooked: the GPU has not enough free memory, compute time or replicas.
	ErrOverbooked = errors.New("not enough free GPU capacity")
)

type refusal struct {
	kind error
	err  error
}

func (r *refusal) Error() string   { return r.err.Error() }
func (r *refusal) Unwrap() []error { return []error{r.kind, r.err} }

// Errorf makes an error of a kind. The format can have %w.
func Errorf(kind error, format string, args ...any) error {
	return &refusal{kind: kind, err: fmt.Errorf(format, args...)}
}
