package request

import "errors"

// ErrForbidden means that the operator's config does not allow the request. Other kinds are
// grant.ErrMalformed, grant.ErrUnknownGPU, grant.ErrAmbiguous and grant.ErrOverbooked.
var ErrForbidden = errors.New("not allowed by the operator")
