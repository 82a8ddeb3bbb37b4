//go:build root

package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/harness"
)

// Two containers on one GPU: each sees its own slice, is held to it to the byte,
// and never sees the other's memory or processes.
func TestTwoContainersShareAGPU(t *testing.T) {
	n := newNode(t, harness.NodeOptions{GPUs: []string{"H200", "A100-80GB"}})
	ctx := context.Background()
	h200 := gpu(t, n, 0)

	big := harness.Container{Name: "main", Command: []string{workload("hold"), "--mib=70000"}}
	bigPod := run(t, n, harness.Pod{Name: "big", Annotations: hami(h200, 81920, 60)})
	bigID := start(t, bigPod, big)
	waitReady(t, bigPod, big)

	smallPod := run(t, n, harness.Pod{Name: "small", Annotations: named(map[string]string{"main": share(h200, 3000, 30)})})
	smallID := start(t, smallPod, harness.Container{Name: "main"})

	v := exec(t, n, smallID, workload("meminfo"))
	require.Equal(t, "1", v["device_count"], "the node's other GPU is not there")
	require.Equal(t, h200, v["device.0.uuid"])
	require.Equal(t, int64(3000*mib), number(t, v["device.0.total_bytes"]))
	require.Equal(t, int64(3000*mib), number(t, v["device.0.info_total_bytes"]))
	require.Equal(t, int64((3000-contextMiB)*mib), number(t, v["device.0.info_free_bytes"]))
	require.Equal(t, "1", v["nvml.device_count"])
	for _, key := range []string{"nvml.0.total_bytes", "nvml.0.v2.total_bytes"} {
		require.Equal(t, int64(3000*mib), number(t, v[key]), key)
	}
	require.Equal(t, int64(contextMiB*mib), number(t, v["nvml.0.used_bytes"]))
	require.Equal(t, "1", v["nvml.0.processes"], "itself, and not its neighbour")

	v = exec(t, n, smallID, workload("alloc"), "--chunk-mib=1")
	require.Equal(t, int64((3000-contextMiB)*mib), number(t, v["allocated_bytes"]), "all of its slice")
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"], "and no more")

	v = exec(t, n, bigID, workload("meminfo"))
	require.Equal(t, int64(81920*mib), number(t, v["nvml.0.total_bytes"]))
	// Two processes of it: the one that holds memory, and the one that looks.
	require.Equal(t, int64((70000+2*contextMiB)*mib), number(t, v["nvml.0.used_bytes"]))
	require.Equal(t, int64((81920-70000-2*contextMiB)*mib), number(t, v["device.0.info_free_bytes"]))

	s, err := n.Status(ctx)
	require.NoError(t, err)
	require.Len(t, s.Containers, 2)
	require.Equal(t, "default/big", s.Containers[0].Pod)
	require.Equal(t, uint64((70000+contextMiB)*mib), s.Containers[0].Shares[0].UsedBytes)
	require.Equal(t, 1, s.Containers[0].Shares[0].Processes)

	require.NoError(t, bigPod.Remove(ctx))
	require.NoError(t, smallPod.Remove(ctx))
	requireNothingLeft(t, n)
}

// A program that links libcuda directly, every way to look a function up, a user
// that isn't root, a read-only root file system, no capabilities to speak of.
func TestLimitHoldsHoweverTheContainerIsMade(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	uuid := gpu(t, n, 0)
	for _, test := range []struct {
		description string
		container   harness.Container
	}{
		{"root", harness.Container{}},
		{"a user", harness.Container{User: 1000}},
		{"read-only root file system", harness.Container{ReadOnly: true}},
		{"an image that asks for all GPUs", harness.Container{Image: harness.GreedyImage}},
		{"its own limits in its variables", harness.Container{Env: []string{
			"CUDA_DEVICE_MEMORY_LIMIT_0=90000m", "CUDA_DEVICE_MEMORY_LIMIT=0", "CUDA_DISABLE_CONTROL=true", "CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/x", "VGPU_LIMITS_PATH=/tmp/x", "VGPU_USAGE_PATH=/tmp/y",
		}}},
		{"its own ld.so.preload", harness.Container{Mounts: []*cri.Mount{{HostPath: "/etc/hostname", ContainerPath: "/etc/ld.so.preload"}}}},
		{"its own limits file", harness.Container{Mounts: []*cri.Mount{{HostPath: "/etc/hostname", ContainerPath: "/.gpuslice/limits"}}}},
		{"its own directory in place of the limiter's", harness.Container{Mounts: []*cri.Mount{{HostPath: t.TempDir(), ContainerPath: "/.gpuslice"}}}},
	} {
		t.Run(test.description, func(t *testing.T) {
			name := "p" + strings.ReplaceAll(strings.ToLower(strings.Map(plain, test.description)), " ", "-")
			pod := run(t, n, harness.Pod{Name: name, Annotations: hami(uuid, 2000, 10)})
			defer func() { require.NoError(t, pod.Remove(context.Background())) }()
			c := test.container
			c.Name = "main"
			id := start(t, pod, c)
			for _, command := range [][]string{
				{workload("meminfo")}, {workload("meminfo-direct")},
				{workload("meminfo"), "--lookup=getproc"}, {workload("meminfo"), "--lookup=getproc_v2"},
			} {
				v := exec(t, n, id, command...)
				require.Equal(t, int64(2000*mib), number(t, v["device.0.total_bytes"]), command)
			}
			for _, kind := range []string{"alloc", "managed", "pitch"} {
				v := exec(t, n, id, workload("alloc"), "--chunk-mib=10", "--kind="+kind)
				require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"], kind)
				require.LessOrEqual(t, number(t, v["allocated_bytes"]), int64((2000-contextMiB)*mib), kind)
				require.Greater(t, number(t, v["allocated_bytes"]), int64((1950-contextMiB)*mib), kind)
			}
			// What is in the container can't be written.
			_, _, code, err := n.Exec(context.Background(), id, "/bin/sh", "-c", "echo > /.gpuslice/limits || echo > /etc/ld.so.preload || echo > /.gpuslice/libvgpu.so")
			require.NoError(t, err)
			require.NotZero(t, code)
		})
	}
	requireNothingLeft(t, n)
}

func plain(r rune) rune {
	if r == ' ' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return -1
}

// Without a grant there is no GPU, whatever is asked for.
func TestWithoutAGrantThereIsNoGPU(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	uuid := gpu(t, n, 0)
	for _, test := range []struct {
		description string
		container   harness.Container
		refused     string
	}{
		{"nothing asked", harness.Container{}, ""},
		{"the image asks for all", harness.Container{Image: harness.GreedyImage}, ""},
		{"the pod names the GPU", harness.Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=" + uuid}}, ""},
		{"the image asks twice", harness.Container{Image: harness.TwiceImage}, "more than once"},
		{"the pod has the device node", harness.Container{Devices: []*cri.Device{{
			HostPath: filepath.Join(n.Dir, "dev", "nvidia0"), ContainerPath: "/dev/nvidia0", Permissions: "rwm",
		}}}, "/dev/nvidia0"},
		{"the device node under another name", harness.Container{Devices: []*cri.Device{{
			HostPath: filepath.Join(n.Dir, "dev", "nvidia0"), ContainerPath: "/dev/harmless", Permissions: "rwm",
		}}}, "/dev/harmless"},
		{"asks NVIDIA's runtime by a mount", harness.Container{Mounts: []*cri.Mount{{
			HostPath: "/dev/null", ContainerPath: "/var/run/nvidia-container-devices/all",
		}}}, "nvidia-container-devices"},
	} {
		t.Run(test.description, func(t *testing.T) {
			pod := run(t, n, harness.Pod{Name: "p" + strings.ReplaceAll(strings.Map(plain, test.description), " ", "-")})
			defer func() { require.NoError(t, pod.Remove(context.Background())) }()
			c := test.container
			c.Name = "main"
			id, err := pod.Start(context.Background(), c)
			if test.refused != "" && (test.container.Image != harness.TwiceImage || !n.MergesVariables()) {
				require.ErrorContains(t, err, test.refused)
				require.ErrorContains(t, err, pod.Pod.Name)
				return
			}
			require.NoError(t, err)
			_, _, code, err := n.Exec(context.Background(), id, workload("meminfo"))
			require.NoError(t, err)
			require.Equal(t, 4, code, "no driver")
			stdout, _, _, err := n.Exec(context.Background(), id, "/bin/sh", "-c", "ls /dev; echo visible=$NVIDIA_VISIBLE_DEVICES")
			require.NoError(t, err)
			require.NotContains(t, stdout, "nvidia")
			require.NotContains(t, stdout, "visible=all")
		})
	}
	requireNothingLeft(t, n)
}

// A container with unreadable limits has no GPU, and reports the reason.
func TestDamagedLimitsDenyTheGPU(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	uuid := gpu(t, n, 0)
	for _, test := range []struct {
		description string
		damage      func(limits string) error
	}{
		{"empty", func(p string) error { return os.Truncate(p, 0) }},
		{"short", func(p string) error { return os.Truncate(p, 200) }},
		{"another magic", func(p string) error { return patch(p, 0, "GARBAGE!") }},
		{"a larger limit without its checksum", func(p string) error { return patch(p, 128+24, "\x00\x00\x00\x00\x40\x00\x00\x00") }},
		{"another GPU", func(p string) error { return patch(p, 128+8, "0123456789abcdef") }},
	} {
		t.Run(test.description, func(t *testing.T) {
			pod := run(t, n, harness.Pod{Name: "p" + strings.ReplaceAll(strings.Map(plain, test.description), " ", "-"), Annotations: hami(uuid, 500, 10)})
			defer func() { require.NoError(t, pod.Remove(context.Background())) }()
			id := start(t, pod, harness.Container{Name: "main"})
			limits := limiter.LimitsPath(filepath.Join(n.StateDir(), "containers", id))
			require.NoError(t, os.Chmod(limits, 0o644))
			require.NoError(t, test.damage(limits))
			for _, command := range []string{"alloc", "meminfo", "hold", "launch"} {
				stdout, stderr, code, err := n.Exec(context.Background(), id, workload(command))
				require.NoError(t, err)
				require.Equal(t, 3, code, "%s: %s%s", command, stdout, stderr)
				require.Contains(t, stdout+stderr, "CUDA_ERROR_NOT_INITIALIZED", command)
				require.Contains(t, stderr, "/.gpuslice/limits", command)
			}
		})
	}
}

// patch writes bytes into a file.
func patch(path string, offset int64, bytes string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte(bytes), offset)
	return err
}

// A pod of several containers: each gets its own share by its name, an init
// container before them, and one without a share nothing.
func TestPodOfSeveralContainers(t *testing.T) {
	n := newNode(t, harness.NodeOptions{GPUs: []string{"H200", "T4"}})
	ctx := context.Background()
	h200, t4 := gpu(t, n, 0), gpu(t, n, 1)
	pod := run(t, n, harness.Pod{Name: "p", Annotations: named(map[string]string{
		"init": share(t4, 15000, 100),
		"a":    share(h200, 2000, 10),
		"b":    `[{"uuid":"` + h200 + `","memoryMiB":3000,"cores":20},{"uuid":"` + t4 + `","memoryMiB":4000,"cores":50}]`,
	})})
	init := harness.Container{Name: "init", Command: []string{workload("meminfo")}}
	initID := start(t, pod, init)
	code, err := n.WaitExit(ctx, initID, time.Minute)
	require.NoError(t, err)
	require.Zero(t, code)
	log, err := pod.Logs(init)
	require.NoError(t, err)
	require.Equal(t, t4, harness.KeyValues(log)["device.0.uuid"])

	a := start(t, pod, harness.Container{Name: "a"})
	// The init container has ended: what it held is free, before it is removed.
	require.NoError(t, harness.Until(ctx, time.Minute, func(ctx context.Context) error {
		s, err := n.Status(ctx)
		if err == nil && s.GPUs[1].GrantedMemoryMiB != 0 {
			err = fmt.Errorf("%d MiB of the T4 are granted", s.GPUs[1].GrantedMemoryMiB)
		}
		return err
	}))
	b := start(t, pod, harness.Container{Name: "b"})
	sidecar := start(t, pod, harness.Container{Name: "sidecar"})

	v := exec(t, n, a, workload("meminfo"))
	require.Equal(t, "1", v["device_count"])
	require.Equal(t, int64(2000*mib), number(t, v["device.0.total_bytes"]))
	v = exec(t, n, b, workload("meminfo"))
	require.Equal(t, "2", v["device_count"])
	for i, want := range []int64{3000, 4000} {
		require.Equal(t, want*mib, number(t, v["device."+string(rune('0'+i))+".total_bytes"]))
	}
	_, _, code, err = n.Exec(ctx, sidecar, workload("meminfo"))
	require.NoError(t, err)
	require.Equal(t, 4, code)

	require.NoError(t, pod.Remove(ctx))
	requireNothingLeft(t, n)
}

// The limiter is inert in programs that never touch CUDA: nothing that they print changes.
func TestOtherProgramsAreUntouched(t *testing.T) {
	n := newNode(t, harness.NodeOptions{})
	pod := run(t, n, harness.Pod{Name: "p", Annotations: hami(gpu(t, n, 0), 500, 10)})
	id := start(t, pod, harness.Container{Name: "main"})
	stdout, stderr, code, err := n.Exec(context.Background(), id, "/bin/dynamic-env", "-i", "A=b")
	require.NoError(t, err)
	require.Zero(t, code)
	require.Equal(t, "A=b\n", stdout)
	require.Empty(t, stderr)
}
