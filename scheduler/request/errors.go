package request

import (
	"fmt"
	"strings"
)

// Error is why a request can't be read or makes no sense, for the pod's author.
type Error struct {
	// Container is the container's name; empty for what is said of the pod.
	Container string
	// Key is the resource, annotation or label, and Value what it says; shortened where it
	// is long, and empty where it is not there.
	Key, Value string
	// Why says what is wrong, and what to do.
	Why string
}

// Error is all of it.
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
