//go:build root

package docker_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

type scenario struct {
	name string
	run  func(*testing.T, docker)
}

// scenarios are for every version of docker.
var scenarios = []scenario{
	{"limits are seen inside", limitsAreSeen},
	{"names are shown", namesAreShown},
	{"memory ends at the limit, to the byte", memoryEndsAtTheLimit},
	{"two containers share a GPU", twoShare},
	{"without a request there is no GPU", noRequest},
	{"a full GPU refuses", fullGPU},
	{"resize while it runs", resized},
	{"restart keeps the share", restart},
	{"kill gives the share back", kill},
	{"hardened and privileged containers", hardened},
	{"the daemon restarts under containers", daemonRestarts},
}

func TestDocker(t *testing.T) {
	m := newMachine(t, "H200")
	d := newDocker(t, m, harness.DockerdOptions{})
	runScenarios(t, d, append(scenarios[:len(scenarios):len(scenarios)],
		scenario{"its time is shared", shareTime},
		scenario{"the node is verified", verified},
		scenario{"what can't be granted is reported", refusals},
		scenario{"a broken config refuses", brokenConfig},
		scenario{"32 at once", manyAtOnce},
		scenario{"no kill loses anything", killsAtRandom},
	))
}

// runScenarios brings the daemon up once; each scenario leaves it without containers.
func runScenarios(t *testing.T, d docker, scenarios []scenario) {
	for _, s := range scenarios {
		left := t.Run(s.name, func(t *testing.T) {
			s.run(t, d)
			require.NoError(t, d.RemoveAll(context.Background()))
			requireNothingLeft(t, d.m)
		})
		if !left && d.RemoveAll(context.Background()) != nil {
			return // there is no daemon any more
		}
	}
}

// namesAreShown: docker's name is in every view, and resize takes it.
func namesAreShown(t *testing.T, d docker) {
	ctx := context.Background()
	d.start(t, append([]string{"--name", "train"}, share(8192, 30)...))
	d.start(t, append([]string{"--name", "side"}, share(1024, 10)...))
	for _, args := range [][]string{{"status"}, {"top", "--once"}, {"describe", "container", "train"}} {
		out, err := d.m.CLI(ctx, args...)
		require.NoError(t, err)
		require.Contains(t, out, "train", args)
	}
	out, err := d.m.CLI(ctx, "status")
	require.NoError(t, err)
	require.Contains(t, out, "side")
	out, err = d.m.CLI(ctx, "resize", "train", "--memory", "6GiB")
	require.NoError(t, err)
	require.Contains(t, out, "memory 8192 -> 6144 MiB")
	requireReserved(t, d.m, 6144+1024, 2)
}

func resized(t *testing.T, d docker) {
	ctx := context.Background()
	id := d.start(t, share(4000, 20))
	_, err := d.m.CLI(ctx, "resize", id[:12], "--memory", "6000MiB", "--cores", "40")
	require.NoError(t, err)
	requireReserved(t, d.m, 6000, 1)
	requireSees(t, d.exec(t, id, workload("meminfo")), 6000)
	_, err = d.m.CLI(ctx, "resize", id[:12], "--memory", "500GiB")
	require.Error(t, err)
	requireReserved(t, d.m, 6000, 1)
	requireSees(t, d.exec(t, id, workload("meminfo")), 6000)
}

func limitsAreSeen(t *testing.T, d docker) {
	id := d.start(t, []string{"-e", "GPUSLICE_MEMORY=8GiB", "-e", "GPUSLICE_CORES=30"})
	requireReserved(t, d.m, 8192, 1)
	s, err := d.m.Status(context.Background())
	require.NoError(t, err)
	require.Equal(t, id, s.Containers[0].ContainerID)
	require.Equal(t, 30, s.Containers[0].Shares[0].Cores)
	requireSees(t, d.exec(t, id, workload("meminfo")), 8192)
	env := d.run(t, share(8192, 30), "/bin/env") // docker exec doesn't pass on what the runtime set
	require.Equal(t, "30", env["CUDA_DEVICE_SM_LIMIT"])
	require.Equal(t, "8192m", env["CUDA_DEVICE_MEMORY_LIMIT_0"])
	spec, err := d.Spec(id)
	require.NoError(t, err)
	limited, err := harness.LimitedOrNone(spec, d.m.StateDir())
	require.NoError(t, err)
	require.True(t, limited)
}

func memoryEndsAtTheLimit(t *testing.T, d docker) {
	for _, kind := range []string{"alloc", "vmm"} {
		v := d.run(t, share(2000, 10), workload("alloc"), "--kind="+kind, "--chunk-mib=2")
		require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"], kind)
		require.Equal(t, strconv.Itoa((2000-contextMiB)*mib), v["allocated_bytes"], kind)
	}
}

func twoShare(t *testing.T, d docker) {
	hold := []string{workload("hold"), "--mib=1000"}
	a, b := d.start(t, share(40000, 30), hold...), d.start(t, share(90000, 60), hold...)
	d.waitReady(t, a)
	d.waitReady(t, b)
	requireReserved(t, d.m, 130000, 2)
	requireSees(t, d.exec(t, a, workload("meminfo")), 40000)
	requireSees(t, d.exec(t, b, workload("meminfo")), 90000)
	// One takes all that it has; the other goes on.
	v := d.exec(t, a, workload("alloc"))
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"])
	v = d.exec(t, b, workload("meminfo"))
	require.Equal(t, strconv.Itoa((90000-1000-2*contextMiB)*mib), v["device.0.info_free_bytes"])
}

// shareTime: two containers that both want all of a GPU divide its time by their shares. There is no agent.
func shareTime(t *testing.T, d docker) {
	for _, cores := range []int{30, 70} {
		d.start(t, busyShare(cores), harness.Busy...)
	}
	require.NoError(t, d.m.HoldShares(context.Background(), 0, map[int]int{30: 30, 70: 70}, 5))
}

// noRequest: a container without a request and an image with "all" get no GPU, through the wrapper and around
// it.
func noRequest(t *testing.T, d docker) {
	for _, image := range []string{harness.WorkloadImage, harness.GreedyImage} {
		for _, runtime := range []string{"gpuslice", "runc"} {
			out, err := d.Docker(context.Background(), "run", "--network", "none", "--runtime", runtime, image, workload("meminfo"))
			require.ErrorContains(t, err, "exit status 4", "%s %s: %s", runtime, image, out) // no driver
		}
	}
	out, err := d.Docker(context.Background(), sliced(harness.GreedyImage, "/bin/env")...)
	require.NoError(t, err)
	require.Equal(t, "void", harness.KeyValues(out)["NVIDIA_VISIBLE_DEVICES"])
}

func restart(t *testing.T, d docker) {
	ctx := context.Background()
	id := d.start(t, share(4000, 20), workload("hold"), "--mib=100")
	for range 3 {
		d.waitReady(t, id)
		_, err := d.Docker(ctx, "restart", "--time", "5", id)
		require.NoError(t, err)
		requireSees(t, d.exec(t, id, workload("meminfo")), 4000)
		requireReserved(t, d.m, 4000, 1)
	}
	// One that was stopped has given its share back, and asks again when it is started.
	_, err := d.Docker(ctx, "stop", "--time", "5", id)
	require.NoError(t, err)
	requireNothingLeft(t, d.m)
	other := d.start(t, share(140000, 100))
	_, err = d.Docker(ctx, "start", id)
	require.ErrorContains(t, err, "gpuslice: ")
	d.remove(t, other)
	_, err = d.Docker(ctx, "start", id)
	require.NoError(t, err)
	requireSees(t, d.exec(t, id, workload("meminfo")), 4000)
}

func kill(t *testing.T, d docker) {
	ctx := context.Background()
	id := d.start(t, share(4000, 20), workload("hold"), "--mib=100")
	d.waitReady(t, id)
	_, err := d.Docker(ctx, "kill", "--signal", "KILL", id)
	require.NoError(t, err)
	_, err = d.Docker(ctx, "wait", id)
	require.NoError(t, err)
	requireNothingLeft(t, d.m)
}
