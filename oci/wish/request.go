package wish

import "github.com/gpuslice/gpuslice/grant"

// Request is what one container asks for.
type Request struct {
	// Devices are the cards; nothing said: the operator's default, or one.
	Devices Devices
	// Amount is how much of each of them.
	Amount
	// Each is how much of the container's i-th card, from 0, where that differs. What it
	// doesn't say is as Amount has it.
	Each map[int]Amount
	// HighPriority says that others stand back while the container is at work. It is
	// allowed: FromContainer refuses one that isn't.
	HighPriority bool
	// Slice is the name of the operator's slice that was asked for; empty: none.
	Slice string
	// Shares are there in place of all the above where a whole grant was asked for.
	Shares []grant.Share
}
