//go:build unix

package grant

import (
	"os"
	"syscall"
)

// nonBlocking: a FIFO would keep the open waiting for a writer.
const nonBlocking = syscall.O_NONBLOCK

// isTrusted reports whether a file belongs to root or to this program's user.
func isTrusted(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || int(stat.Uid) == os.Geteuid())
}
