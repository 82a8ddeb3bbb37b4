// Package status is monitor/view under its former name.
package status

import "github.com/gpuslice/gpuslice/monitor/view"

// The types of a view.
type (
	Node      = view.Node
	Card      = view.Card
	Container = view.Container
	Share     = view.Share
)

// Read is view.Read.
var Read = view.Read
