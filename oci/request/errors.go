package request

import (
	"errors"
	"fmt"
)

// ErrForbidden: the operator's config does not allow what is asked. What is malformed,
// names a GPU that the node lacks, or finds no room is grant.ErrMalformed,
// grant.ErrUnknownGPU and grant.ErrOverbooked, as in the ledger.
var ErrForbidden = errors.New("not allowed by the operator")

// refusal is an error whose text is free of its kind's.
type refusal struct {
	kind error
	err  error
}

func (r *refusal) Error() string   { return r.err.Error() }
func (r *refusal) Unwrap() []error { return []error{r.kind, r.err} }

// refuse makes an error of the given kind. The format may wrap a cause with %w.
func refuse(kind error, format string, args ...any) error {
	return &refusal{kind: kind, err: fmt.Errorf(format, args...)}
}
