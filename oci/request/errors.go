package request

import (
	"errors"
	"fmt"
)

// ErrForbidden means that the operator's config does not allow the request. Other kinds are
// grant.ErrMalformed, grant.ErrUnknownGPU, grant.ErrAmbiguous and grant.ErrOverbooked.
var ErrForbidden = errors.New("not allowed by the operator")

// refusal is an error of a kind that its text does not repeat.
type refusal struct {
	kind error
	err  error
}

func (r *refusal) Error() string   { return r.err.Error() }
func (r *refusal) Unwrap() []error { return []error{r.kind, r.err} }

// refuse returns an error of a kind. The format may wrap a cause with %w.
func refuse(kind error, format string, args ...any) error {
	return &refusal{kind: kind, err: fmt.Errorf(format, args...)}
}
