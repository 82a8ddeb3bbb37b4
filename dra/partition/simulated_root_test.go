//go:build root

package partition

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

const library = "../../build/sim/libnvidia-ml.so.1"

func TestMain(m *testing.M) {
	if dir := os.Getenv("PARTITION_TEST_DIR"); dir != "" {
		work(dir)
		return
	}
	os.Exit(m.Run())
}

func openSimulated(dir string) (*Partitioner, *nvidia.Cache, error) {
	lib, err := filepath.Abs(library)
	if err != nil {
		return nil, nil, err
	}
	cache := nvidia.NewCache(nvml.New(nvml.WithLibraryPath(lib)), nvidia.CacheOptions{Profiles: true})
	if err := cache.Refresh(context.Background()); err != nil {
		return nil, nil, err
	}
	p, err := Open(Config{
		Dir: dir, Boot: "boot", GPUs: cache, Log: slog.New(slog.DiscardHandler),
		Held: func(context.Context, string) (bool, error) { return false, nil },
	})
	return p, cache, err
}

// work makes and destroys a MIG device until it is killed, with a line before each half.
func work(dir string) {
	p, cache, err := openSimulated(dir)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	kinds := cache.Node().GPUs[0].Profiles
	for i := 0; ; i++ {
		kind := kinds[i%len(kinds)]
		place := Place{GPU: cache.Node().GPUs[0].UUID, Profile: kind.ID, At: kind.Places[i%len(kind.Places)]}
		fmt.Println("make")
		if _, err := p.Make(ctx, "claim", place); err == nil {
			err = p.Use("claim")
			if err != nil {
				panic(err)
			}
		}
		fmt.Println("release")
		if err := p.Release(ctx, "claim"); err != nil {
			panic(err)
		}
	}
}

// A real process with the simulated NVML, killed in its calls (SIMGPU_CRASH) and at random, beside an administrator's MIG device. Nothing of it
// stays, and that device does.
func TestKilledProcess(t *testing.T) {
	sim, err := filepath.Abs("../../build/sim")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(sim, "simctl"), "the simulated driver isn't built: run make build")
	t.Setenv("SIMGPU_STATE", filepath.Join(t.TempDir(), "state"))
	simctl := func(args ...string) {
		t.Helper()
		out, err := exec.Command(filepath.Join(sim, "simctl"), args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	simctl("init", "--gpu", "H200:mig=1g.18gb:3")
	dir := filepath.Join(t.TempDir(), "mig")
	self, err := os.Executable()
	require.NoError(t, err)
	run := func(crash string, lines int) {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "PARTITION_TEST_DIR="+dir, "SIMGPU_CRASH="+crash)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		read := bufio.NewScanner(out)
		for i := 0; i < lines && read.Scan(); i++ {
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		require.NotContains(t, stderr.String(), "panic")
	}
	var foreign []hardware.GPUInstance
	check := func(round int) {
		p, cache, err := openSimulated(dir)
		require.NoError(t, err)
		p.Reconcile(t.Context(), func(string) bool { return false })
		require.Empty(t, p.Records(), "round %d", round)
		now, err := cache.Instances(t.Context(), cache.Node().GPUs[0].UUID)
		require.NoError(t, err)
		require.Len(t, now, 1, "round %d", round)
		if foreign == nil {
			foreign = slices.Clone(now)
		}
		require.Equal(t, foreign, now)
		require.NoError(t, cache.Close())
	}
	check(0)
	for step := 1; step <= 40; step++ {
		run(fmt.Sprint(step), 1<<20)
		check(step)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for round := range max(*kills/10, 10) {
		run("0", 1+random.IntN(40))
		check(round)
	}
}
