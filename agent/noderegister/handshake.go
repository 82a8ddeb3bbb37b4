package noderegister

import (
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Prefixes of the handshake. A time follows, in time.DateTime without a zone. Schedulers read only
// their own.
const (
	requesting = "Requesting"
	deleted    = "Deleted"
	reported   = "Reported"
)

// overdue is an unanswered old request: schedulers that use the handshake remove the node's devices
// at their next check. ("Deleted" would mean that they are already removed.)
const overdue = requesting + "_1970-01-01 00:00:00"

// answer returns the new value of the handshake, if it changes. Without devices, and when the agent stops, a
// request stays open, so that schedulers remove the devices.
func (h Handshake) answer(current string, devices Metadata, leaving bool, now time.Time) (value string, write bool) {
	if h == HandshakeIgnore || current == "" {
		return "", false
	}
	asked := strings.HasPrefix(current, requesting)
	dropped := strings.HasPrefix(current, deleted)
	switch {
	case leaving:
		return overdue, !dropped && current != overdue
	case devices.Annotations[api.AnnotationHAMiRegister] == "":
		return "", false
	default:
		return reported + "_" + now.Format(time.DateTime), asked || dropped
	}
}
