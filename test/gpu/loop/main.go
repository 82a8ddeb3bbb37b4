// Loop runs the agent's measurement of use beside programs that have no containers: `make gpu-test` starts it. Each
// directory in the one that it is given has the limits and usage files of a slice, and the processes of a slice are those
// that have the path of its usage file in their environment.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/nvidia"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: loop DIRECTORY")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "loop:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) error {
	inventory := nvidia.NewCache(nvml.New(), nvidia.CacheOptions{})
	if err := inventory.Refresh(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	feedback.New(feedback.Config{
		Containers: func(context.Context) ([]feedback.Container, error) { return slices(dir) },
		Times:      inventory.ProcessTimes,
		Memories:   inventory.ProcessMemories,
		Owners:     owners,
		Log:        slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}).Run(ctx)
	return inventory.Close()
}

// slices also gives new limits files the identity that the loop expects of a container's.
func slices(dir string) ([]feedback.Container, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []feedback.Container
	for _, entry := range entries {
		c := feedback.Container{ID: entry.Name(), Dir: filepath.Join(dir, entry.Name())}
		limits, err := limiter.ReadLimits(limiter.LimitsPath(c.Dir))
		if err != nil {
			continue // being made
		}
		if id := limiter.IdentityOf(c.ID); limits.Identity != id {
			limits.Identity = id
			if err := limiter.UpdateLimits(c.Dir, limits); err != nil {
				return nil, err
			}
		}
		all = append(all, c)
	}
	return all, nil
}

func owners(pids []int, usageFiles map[string]string) map[int]string {
	slice := map[string]string{}
	for id, path := range usageFiles {
		slice[path] = id
	}
	found := map[int]string{}
	for _, pid := range pids {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			continue // it has ended
		}
		for variable := range bytes.SplitSeq(environment, []byte{0}) {
			path, is := strings.CutPrefix(string(variable), "VGPU_USAGE_PATH=")
			if id := slice[path]; is && id != "" {
				found[pid] = id
			}
		}
	}
	return found
}
