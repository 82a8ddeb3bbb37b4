package limiter

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// parseUUID parses "GPU-" or "MIG-" and 8-4-4-4-12 digits into the bytes of cuDeviceGetUuid_v2.
func parseUUID(text string) (id [uuidSize]byte, mig bool, err error) {
	rest, ok := strings.CutPrefix(text, "GPU-")
	if !ok {
		rest, mig = strings.CutPrefix(text, "MIG-")
	}
	if !ok && !mig {
		return id, false, fmt.Errorf("uuid %q: it does not start with GPU- or MIG-", text)
	}
	if len(rest) != 36 || rest[8] != '-' || rest[13] != '-' || rest[18] != '-' || rest[23] != '-' {
		return id, false, fmt.Errorf("uuid %q: it does not have the form 8-4-4-4-12", text)
	}
	digits := rest[:8] + rest[9:13] + rest[14:18] + rest[19:23] + rest[24:]
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil {
		return id, false, fmt.Errorf("uuid %q: %w", text, err)
	}
	return id, mig, nil
}

func formatUUID(id [uuidSize]byte, mig bool) string {
	prefix := "GPU"
	if mig {
		prefix = "MIG"
	}
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, id[:4], id[4:6], id[6:8], id[8:10], id[10:16])
}
