package ociruntime

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
		Config: config, ConfigProblem: problem, Self: self, Version: "v1.2.3", Env: os.Environ(),
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
	patience = time.Minute
	pause    = 5 * time.Millisecond
)

// The program runs several times for each container. What it is linked with costs time
// at each start: cgo the C library's loader, the network's packages their tables.
func TestLinkedWithLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/gpuslice/gpuslice/cmd/gpuslice-runtime").Output()
	require.NoError(t, err)
	packages := strings.Fields(string(out))
	require.Contains(t, packages, "github.com/gpuslice/gpuslice/oci/runtime")
	for _, heavy := range []string{"runtime/cgo", "net", "github.com/NVIDIA/go-nvml/pkg/nvml", "github.com/gpuslice/gpuslice/nvidia"} {
		require.NotContains(t, packages, heavy)
	}
}
