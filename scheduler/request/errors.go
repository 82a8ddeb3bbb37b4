package request

import (
	"fmt"
	"strings"
)

// Error is an invalid request, for the pod's author.
type Error struct {
	// Container is a name; empty for the pod.
	Container string
	// Key is the resource, annotation or label; Value may be shortened.
	Key, Value string
	// Why includes what to do.
	Why string
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Container != "" {
		fmt.Fprintf(&b, "container %q: ", e.Container)
	}
	b.WriteString(e.Key + ": ")
	if e.Value != "" {
		b.WriteString(e.Value + ": ")
	}
	b.WriteString(e.Why)
	return b.String()
}
