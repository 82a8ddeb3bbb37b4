package ociruntime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// With these variables the test program is gpuslice-runtime, and can be killed at a step.
const (
	actEnv    = "GPUSLICE_TEST_ACT"    // be gpuslice-runtime
	configEnv = "GPUSLICE_TEST_CONFIG" // with this config
	killEnv   = "GPUSLICE_TEST_KILL"   // and kill -9 yourself at this step
)

func TestMain(m *testing.M) {
	if os.Getenv(actEnv) != "" {
		os.Exit(act())
	}
	os.Exit(m.Run())
}

// act is cmd/gpuslice-runtime with steps.
func act() int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	config, problem := LoadConfig(os.Getenv(configEnv))
	r := &Runtime{
		Config: config, ConfigProblem: problem, Self: self, Env: os.Environ(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		GPUs:    NewInventory(config, self).GPUs,
		Limiter: func() (Limiter, error) { return FindLimiter(config, self) },
		Exec:    syscall.Exec,
		step: func(step string) {
			if step == os.Getenv(killEnv) {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		},
	}
	return r.Main(context.Background(), os.Args[1:])
}

// write makes a file, and the directories that it is in.
func write(t testing.TB, path, content string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// read reads a file.
func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func itoa(n int) string { return strconv.Itoa(n) }

// How long the tests wait for something, and how often they look.
const (
	patience = 20 * time.Second
	pause    = 5 * time.Millisecond
)
