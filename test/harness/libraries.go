package harness

import "runtime"

// The names of this machine's libraries, by Debian, glibc and musl.
var (
	// Triplet is the directory of libraries in /lib and /usr/lib.
	Triplet = byMachine("x86_64-linux-gnu", "aarch64-linux-gnu")
	// Loader is the path of glibc's loader.
	Loader = byMachine("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
	// MuslLoader is the path of musl's.
	MuslLoader = byMachine("/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1")
)

func byMachine(amd64, arm64 string) string {
	return map[string]string{"amd64": amd64, "arm64": arm64}[runtime.GOARCH]
}
