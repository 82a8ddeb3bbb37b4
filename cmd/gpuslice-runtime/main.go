// Command gpuslice-runtime is an OCI runtime that adds GPU shares to containers: see package
// ociruntime. Its command line is the low-level runtime's.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/cdihook"
	"github.com/gpuslice/gpuslice/oci/native"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
	"github.com/gpuslice/gpuslice/oci/slice"
)

// configEnv overrides api.RuntimeConfig.
const configEnv = "GPUSLICE_RUNTIME_CONFIG"

func init() {
	// exec must run in the first thread: else the process would look like a zombie to another
	// process that checks whether this creation has ended.
	runtime.LockOSThread()
}

func main() {
	debug.SetGCPercent(-1) // the process ends after milliseconds
	debug.SetMemoryLimit(256 << 20)

	if len(os.Args) > 1 {
		switch os.Args[1] { // hooks of CDI specs need no config
		case "cdi-hook":
			os.Exit(cdihook.Main(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
		case oci.MountCheckCommand:
			os.Exit(slice.CheckMain(os.Stdin, os.Stderr))
		case native.Command:
			os.Exit(native.Main(context.Background(), os.Args[2:], os.Stdin, os.Stderr))
		case slice.Command:
			os.Exit(slice.Main(context.Background(), os.Args[2:], os.Stdin, os.Stderr))
		}
	}

	self, err := os.Executable()
	if err != nil {
		fmt.Fprintf(os.Stderr, "gpuslice: find the path of this program: %v\n", err)
		os.Exit(1)
	}
	config, problem := ociruntime.LoadConfig(configPath(os.Args[1:]))
	r := &ociruntime.Runtime{
		Config: config, ConfigProblem: problem, Self: self, Version: version.String(), Env: os.Environ(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		GPUs:     ociruntime.NewInventory(config, self).GPUs,
		Limiter:  func() (ociruntime.Limiter, error) { return ociruntime.FindLimiter(config, self) },
		Exec:     syscall.Exec,
		NoNative: func() error { return ociruntime.ProbeNative(context.Background(), config, self) },
	}
	os.Exit(r.Main(context.Background(), os.Args[1:]))
}

func configPath(args []string) string {
	if len(args) > 0 && args[0] == "hook" {
		for _, arg := range args[1:] {
			if path, ok := strings.CutPrefix(arg, "--config="); ok {
				return path
			}
		}
	}
	if path := os.Getenv(configEnv); path != "" {
		return path
	}
	return api.RuntimeConfig
}
