package ledger

import "errors"

// What a caller may branch on with errors.Is, beside the kinds of package grant.
var (
	// ErrSlotTaken: another container of the pod already has this slot of the
	// positional grant. A caller may let such a container run without a GPU.
	ErrSlotTaken = errors.New("slot taken")
	// ErrConflict: the container id is already booked with another content.
	ErrConflict = errors.New("conflicting claim")
	// ErrNoClaim: the container holds no share that counts.
	ErrNoClaim = errors.New("no claim")
	// ErrCordoned: the GPU's operator wants no new container on it.
	ErrCordoned = errors.New("GPU cordoned")
	// ErrCorrupt: an entry of the ledger can't be read, so what is free is not known.
	ErrCorrupt = errors.New("corrupt ledger")
	// ErrBlocked: a container that is there may hold the GPU, and its grant is not
	// known (Ledger.Block), so what is free isn't either.
	ErrBlocked = errors.New("blocked by a container whose grant is not known")
)
