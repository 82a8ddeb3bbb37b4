package noderegister

import (
	"strings"
	"time"
)

// The words of the handshake. The part after them is a time in time.DateTime, without a
// zone; only a scheduler's own is read, by schedulers.
const (
	requesting = "Requesting" // a scheduler asks
	deleted    = "Deleted"    // a scheduler has dropped the node's devices
	reported   = "Reported"   // the agent has answered
)

// overdue is a question that nobody answered in time, for every scheduler: it makes
// those that go by the handshake drop the node's devices at their next look, instead of
// a minute later. ("Deleted" would not: it means that they are dropped already.)
const overdue = requesting + "_1970-01-01 00:00:00"

// answer is what is to be written in place of the current handshake, if anything.
//
// A question is answered as long as the node has devices to tell of; without any it
// stays open, which makes schedulers drop those that they know. So does an agent that
// leaves. Nothing is written where no scheduler has ever asked.
func (h Handshake) answer(current string, told Metadata, leaving bool, now time.Time) (value string, write bool) {
	if h == HandshakeIgnore || current == "" {
		return "", false
	}
	asked := strings.HasPrefix(current, requesting)
	dropped := strings.HasPrefix(current, deleted)
	switch {
	case leaving:
		return overdue, !dropped && current != overdue
	case told.Annotations[AnnotationRegister] == "":
		return "", false
	default:
		return reported + "_" + now.Format(time.DateTime), asked || dropped
	}
}
