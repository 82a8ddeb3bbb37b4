//go:build !unix

package grant

import "os"

const nonBlocking = 0

// isTrusted: programs with grant keys run on Linux.
func isTrusted(os.FileInfo) bool { return false }
