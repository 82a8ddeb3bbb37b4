package vgpufs_test

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
)

// listenIn is set in the process that simulates a container runtime.
const listenIn = "VGPUFS_TEST_LISTEN_IN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(listenIn); dir != "" {
		listen(dir)
	}
	os.Exit(m.Run())
}

// listen listens, and answers each line with whether a claim is mounted.
func listen(dir string) {
	listener, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		panic(err)
	}
	defer listener.Close()
	lines := bufio.NewScanner(os.Stdin)
	for _, _ = os.Stdout.WriteString("listening\n"); lines.Scan(); {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			panic(err)
		}
		answer := "not mounted\n"
		if strings.Contains(string(mounts), filepath.Join(dir, "claim", vgpufs.Name)+" ") {
			answer = "mounted\n"
		}
		_, _ = os.Stdout.WriteString(answer)
	}
	os.Exit(0)
}
