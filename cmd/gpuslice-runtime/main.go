// Command gpuslice-runtime is an OCI runtime for docker, podman, nerdctl and ctr: it gives
// a container the share of a GPU that it asks for and has a low-level runtime (runc, crun)
// make it. Its command line is the low-level runtime's. `gpuslice-runtime hook` is for
// runtimes that only take hooks. Package ociruntime is its manual.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/cdihook"
	"github.com/gpuslice/gpuslice/oci/request"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
	"github.com/gpuslice/gpuslice/oci/slice"
)

// configEnv names another config than request.DefaultPath.
const configEnv = "GPUSLICE_RUNTIME_CONFIG"

func init() {
	// The thread that execs is then the process' first: it never looks like a zombie to
	// one that asks whether this creation is still under way.
	runtime.LockOSThread()
}

func main() {
	// It lives for milliseconds, and collecting what it leaves would take some of them.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(256 << 20) // but for a config of monstrous size

	if len(os.Args) > 1 {
		switch os.Args[1] { // hooks of CDI specs, which need no config
		case "cdi-hook":
			os.Exit(cdihook.Main(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
		case oci.MountCheckCommand:
			os.Exit(slice.CheckMain(os.Stdin, os.Stderr))
		case slice.Command:
			os.Exit(slice.Main(context.Background(), os.Args[2:], os.Stdin, os.Stderr))
		}
	}

	self, err := os.Executable()
	if err != nil {
		fmt.Fprintf(os.Stderr, "gpuslice: find this program: %v\n", err)
		os.Exit(1)
	}
	config, problem := ociruntime.LoadConfig(configPath(os.Args[1:]))
	r := &ociruntime.Runtime{
		Config: config, ConfigProblem: problem, Self: self, Env: os.Environ(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		GPUs:    ociruntime.NewInventory(config, self).GPUs,
		Limiter: func() (ociruntime.Limiter, error) { return ociruntime.FindLimiter(config, self) },
		Exec:    syscall.Exec,
	}
	os.Exit(r.Main(context.Background(), os.Args[1:]))
}

// configPath is the config's: that of a hook's command line, the environment's, or the
// usual one.
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
	return request.DefaultPath
}
