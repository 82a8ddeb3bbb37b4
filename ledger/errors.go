package ledger

import "errors"

// Kinds of errors, for errors.Is, beside those of package grant.
var (
	// ErrPositionTaken: another container of the pod has this position of HAMi's annotation. The container can run
	// without a GPU.
	ErrPositionTaken = errors.New("position taken")
	ErrConflict      = errors.New("conflicting claim")
	ErrNoClaim       = errors.New("no claim")
	ErrCordoned      = errors.New("GPU cordoned")
	// ErrCorrupt: an entry is unreadable, so the free amounts are not known.
	ErrCorrupt = errors.New("corrupt ledger")
	// ErrBlocked: a container with an unknown grant can hold the GPU (Ledger.Block).
	ErrBlocked = errors.New("blocked by a container with an unknown grant")
)
