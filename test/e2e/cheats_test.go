//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// What the cheats' pods ask for, and may have.
const (
	cheatMiB   = 2000
	cheatCores = 10
)

// outcome is what comes of a try to cheat.
type outcome string

const (
	// limited: the pod runs, and its container is held to its grant.
	limited outcome = "limited"
	// broken: the pod runs, and its container finds no GPU at all.
	broken outcome = "without a GPU"
	// denied: the API server refuses it.
	denied outcome = "denied"
	// unscheduled: no node is found for it.
	unscheduled outcome = "unscheduled"
	// refused: the container is not created.
	refused outcome = "refused"
)

// cheat is an attempt to get more than the grant by a pod's spec.
type cheat struct {
	name string
	// try changes the pod. Its container main asks for cheatMiB and cheatCores.
	try  func(*corev1.Pod)
	want outcome
	// This text must be in the refusal.
	says string
	// command is tried inside, and must fail.
	command []string
}

func main(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[0] }

func withEnv(pairs ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, pair := range pairs {
			name, value, _ := strings.Cut(pair, "=")
			main(p).Env = append(main(p).Env, corev1.EnvVar{Name: name, Value: value})
		}
	}
}

func withVolume(source corev1.VolumeSource, mounts ...corev1.VolumeMount) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: source})
		for _, m := range mounts {
			m.Name = "v"
			main(p).VolumeMounts = append(main(p).VolumeMounts, m)
		}
	}
}

func withEmptyDir(path string) func(*corev1.Pod) {
	return withVolume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, corev1.VolumeMount{MountPath: path})
}

// withFile mounts a file that the pod's author has written over one in the container.
func withFile(path string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{"text": "/nowhere/own.so"}
		withVolume(corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{
			Path: "file", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['text']"},
		}}}}, corev1.VolumeMount{MountPath: path, SubPath: "file"})(p)
	}
}

func withHostPath(host func() string, path string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		withVolume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host()}}, corev1.VolumeMount{MountPath: path})(p)
	}
}

// onAnother keeps the pod off the GPU of /dev/nvidia7: with a share of that GPU it may open the node.
func onAnother(try func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		withAnnotation("nvidia.com/nouse-gpuuuid", "GPU-00000008-5151-4000-8000-000000000008")(p)
		try(p)
	}
}

// hostDev is the directory with the simulated GPUs' device nodes.
func hostDev(names ...string) func() string {
	return func() string { return filepath.Join(append([]string{cluster.Dir, "dev"}, names...)...) }
}

func withSecurity(set func(*corev1.SecurityContext)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		main(p).SecurityContext = &corev1.SecurityContext{}
		set(main(p).SecurityContext)
	}
}

func withCapability(names ...corev1.Capability) func(*corev1.Pod) {
	return withSecurity(func(c *corev1.SecurityContext) { c.Capabilities = &corev1.Capabilities{Add: names} })
}

func withAnnotation(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
}

func withLimits(r resources) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for name, amount := range r.requirements().Limits {
			main(p).Resources.Limits[name] = amount
		}
	}
}

// read makes a device node's cgroup decide: without its leave, open fails with EPERM.
func read(path string) []string { return []string{"/bin/sh", "-c", "cat " + path} }

func ref[T any](v T) *T { return &v }

// specCheats are the attempts with a pod that is created unchanged; the API server or the agent answers.
var specCheats = []cheat{
	{name: "its limit by HAMi's variable", try: withEnv("CUDA_DEVICE_MEMORY_LIMIT=0", "CUDA_DEVICE_MEMORY_LIMIT_0=140000m", "CUDA_DEVICE_SM_LIMIT=0"), want: limited},
	{name: "the limiter's switch", try: withEnv("CUDA_DISABLE_CONTROL=true"), want: limited},
	{name: "another usage file", try: withEnv("CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/x", "VGPU_USAGE_PATH=/tmp/y", "VGPU_LIMITS_PATH=/tmp/z"), want: limited},
	{name: "core policy by HAMi's variable", try: withEnv("GPU_CORE_UTILIZATION_POLICY=disable", "CUDA_TASK_PRIORITY=0"), want: limited},
	{name: "oversubscription by HAMi's variable", try: withEnv("CUDA_OVERSUBSCRIBE=true"), want: limited},
	{name: "a preload of its own", try: withEnv("LD_PRELOAD=/lib/" + harness.Triplet + "/libm.so.6"), want: limited},
	{name: "an empty preload", try: withEnv("LD_PRELOAD="), want: limited},
	{name: "a library path of its own", try: withEnv("LD_LIBRARY_PATH=/tmp:/lib/" + harness.Triplet), want: limited},
	{name: "an auditor", try: withEnv("LD_AUDIT=/lib/" + harness.Triplet + "/libm.so.6"), want: limited},
	{name: "the driver's directory as library path", try: withEnv("LD_LIBRARY_PATH=/.gpuslice/driver"), want: refused, says: "remove it"},
	{name: "all GPUs by NVIDIA's variable", try: withEnv("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"), want: refused, says: "more than once"},
	{name: "another GPU by NVIDIA's variable", try: withEnv("NVIDIA_VISIBLE_DEVICES=1"), want: refused, says: "more than once"},
	// The device plugin's own "void" is the other.
	{name: "NVIDIA's variable twice", try: withEnv("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"), want: refused, says: "more than once"},
	{name: "all GPUs by CUDA's variable", try: withEnv("CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"), want: limited},
	{name: "an image that asks for all GPUs", try: func(p *corev1.Pod) { main(p).Image = harness.GreedyImage }, want: limited},
	{name: "an image that asks twice", try: func(p *corev1.Pod) { main(p).Image = harness.TwiceImage }, want: refused, says: "more than once"},

	{name: "a directory over the limiter's", try: withEmptyDir("/.gpuslice"), want: limited},
	{name: "a directory over the limits", try: withEmptyDir("/.gpuslice/limits"), want: limited},
	{name: "a directory over /etc", try: withEmptyDir("/etc"), want: limited},
	{name: "a file over ld.so.preload", try: withFile("/etc/ld.so.preload"), want: limited},
	{name: "a file over the limits", try: withFile("/.gpuslice/limits"), want: limited},
	{name: "a file over the limiter", try: withFile("/.gpuslice/libvgpu.so"), want: limited},
	{name: "a file over the driver", try: withFile("/usr/lib/" + harness.Triplet + "/libcuda.so.1"), want: limited},

	{name: "the node's /dev", try: onAnother(withHostPath(hostDev(), "/host")), want: limited, command: read("/host/nvidia7")},
	{name: "a GPU's node by hostPath", try: onAnother(withHostPath(hostDev("nvidia7"), "/tmp/gpu")), want: limited, command: read("/tmp/gpu")},
	{name: "a GPU's node by hostPath and name", try: withHostPath(hostDev("nvidia7"), "/dev/nvidia7"), want: refused, says: "nvidia7"},
	{name: "NVIDIA's runtime by a mount", try: withEmptyDir("/var/run/nvidia-container-devices/all"), want: refused, says: "nvidia-container-devices"},
	{name: "a device node of its own", try: onAnother(withCapability("MKNOD")), want: limited, command: []string{"/bin/sh", "-c", "/bin/busybox mknod /tmp/gpu c 195 7 && cat /tmp/gpu"}},
	{name: "all that isn't privileged", try: withSecurity(func(c *corev1.SecurityContext) {
		c.RunAsUser, c.AllowPrivilegeEscalation = ref(int64(0)), ref(true)
		c.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
		c.Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"SYS_PTRACE", "NET_ADMIN", "DAC_READ_SEARCH", "SYS_RAWIO", "MKNOD"}}
	}), want: limited, command: []string{"/bin/sh", "-c", "echo > /.gpuslice/limits"}},
	{name: "a user that isn't root", try: withSecurity(func(c *corev1.SecurityContext) { c.RunAsUser = ref(int64(1000)) }), want: limited},
	{name: "a file system that can't be written", try: withSecurity(func(c *corev1.SecurityContext) { c.ReadOnlyRootFilesystem = ref(true) }), want: limited},
	{name: "an unmasked /proc", try: withSecurity(func(c *corev1.SecurityContext) { c.ProcMount = ref(corev1.UnmaskedProcMount) }), want: denied, says: "procMount"},
	{name: "hostPID", try: func(p *corev1.Pod) { p.Spec.HostPID = true }, want: denied, says: "spec.hostPID"},
	{name: "CAP_SYS_ADMIN", try: withCapability("SYS_ADMIN"), want: denied, says: "has the capability SYS_ADMIN"},
	{name: "a variable that NVIDIA's runtime may prefer", try: withEnv("DOCKER_RESOURCE_GPU=all"), want: limited},
	{name: "a preload through /proc", try: withEnv("LD_PRELOAD=/proc/self/root/.gpuslice/driver/cuda"), want: refused, says: "remove it"},
	{name: "the limit of a GPU that it can't have", try: withEnv("CUDA_DEVICE_MEMORY_LIMIT_16=1"), want: refused, says: "remove the variable"},
	{name: "the node's IPC and network", try: func(p *corev1.Pod) { p.Spec.HostIPC, p.Spec.HostNetwork = true, true }, want: limited},
	{name: "mounts that spread", try: withVolume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		corev1.VolumeMount{MountPath: "/.gpuslice", MountPropagation: ref(corev1.MountPropagationBidirectional)}), want: denied, says: "Bidirectional"},
	{name: "replicas of the device plugin", try: withAnnotation("gpuslice.io/replicas", "GPU-1::0"), want: denied, says: "gpuslice.io/replicas"},
	{name: "a MIG device", try: withAnnotation("gpuslice.io/mig-1g.10gb", "MIG-1::0"), want: denied, says: "gpuslice.io/mig-1g.10gb"},
	{name: "another container of the name that has the grant", try: func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{container("main", nil)}
	}, want: denied, says: "Duplicate"},
	{name: "a command that starts in the driver's directory", try: func(p *corev1.Pod) { main(p).WorkingDir = "/.gpuslice/driver" }, want: limited},
}

// numberCheats are the attempts with invalid amounts.
var numberCheats = []cheat{
	{name: "a negative amount", try: withLimits(resources{"nvidia.com/gpumem": "-1"}), want: denied, says: "must be greater than or equal to 0"},
	{name: "half a GPU", try: withLimits(resources{"nvidia.com/gpu": "500m"}), want: denied, says: "must be an integer"},
	{name: "an amount past 64 bits", try: withLimits(resources{"nvidia.com/gpumem": "99999999999999999999"}), want: denied},
	{name: "the largest amount", try: withLimits(resources{"nvidia.com/gpumem": "9223372036854775807"}), want: denied},
	{name: "more memory than a GPU has", try: withLimits(resources{"nvidia.com/gpumem": "143772"}), want: unscheduled, says: "143772"},
	{name: "more GPUs than there are", try: withLimits(resources{"nvidia.com/gpu": "9"}), want: unscheduled},
	{name: "a million GPUs", try: withLimits(resources{"nvidia.com/gpu": "1000000"}), want: denied},
	{name: "1000 percent of compute time", try: withLimits(resources{"nvidia.com/gpucores": "1000"}), want: denied},
	{name: "101 percent of memory", try: withLimits(resources{"nvidia.com/gpumem": "0", "nvidia.com/gpumem-percentage": "101"}), want: denied},
}

// cameOf waits until it is known what came of a pod, and why.
func (s *space) cameOf(name string) (came outcome, p *corev1.Pod, says string) {
	p = s.wait(name, func(p *corev1.Pod) error {
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Reason == corev1.PodReasonUnschedulable {
				came, says = unscheduled, condition.Message
				return nil
			}
		}
		statuses := p.Status.ContainerStatuses
		if len(statuses) == 0 {
			return errors.New("nothing is known of its container")
		}
		switch waiting := statuses[0].State.Waiting; {
		case statuses[0].State.Running != nil:
			came = limited
			return nil
		case waiting != nil && strings.Contains(waiting.Message, "ttrpc: closed"):
			return errors.New("containerd's connection to the agent was lost: kubelet tries again")
		case waiting != nil && (waiting.Reason == "CreateContainerError" || waiting.Reason == "RunContainerError"):
			came, says = refused, waiting.Message
			return nil
		}
		return fmt.Errorf("its container is not decided: %+v", statuses[0].State)
	})
	if came == limited && len(s.devices(p, "main")) == 0 {
		came = broken
	}
	require.NotContains(s.t, cluster.Events(context.Background(), s.name, name), "%!", "an event's text is no format")
	return came, p, says
}

// testCheats makes a pod of each, all at once, as the tenant.
func testCheats(t *testing.T, cheats []cheat) {
	s := newSpace(t)
	before, err := cluster.Restarts(context.Background(), "agent")
	require.NoError(t, err)
	require.NotEmpty(t, before)
	refusals := map[string]error{}
	name := func(i int) string { return fmt.Sprintf("p%d", i) }
	for i, c := range cheats {
		p := pod(name(i), container("main", gpu(cheatMiB, cheatCores)))
		c.try(p)
		_, refusals[p.Name] = s.tenant.CoreV1().Pods(s.name).Create(context.Background(), p, metav1.CreateOptions{})
	}
	for i, c := range cheats {
		t.Run(c.name, func(t *testing.T) {
			s := s.in(t)
			came, says := denied, ""
			var made *corev1.Pod
			if err := refusals[name(i)]; err != nil {
				says = err.Error()
			} else {
				came, made, says = s.cameOf(name(i))
			}
			require.Equal(t, c.want, came, says)
			require.Contains(t, says, c.says)
			if came != limited {
				return
			}
			s.requireHeld(made, "main", cheatMiB)
			if c.command != nil {
				stdout, stderr, code, err := cluster.ExecIn(context.Background(), made, "main", c.command...)
				require.NoError(t, err)
				require.NotZero(t, code, "%s: %s%s", c.command, stdout, stderr)
				require.Regexp(t, "not permitted|denied|Read-only", stderr)
			}
		})
	}
	// No container holds a GPU without its limits after any attempt.
	_, err = cluster.Held(context.Background())
	require.NoError(t, err)
	after, err := cluster.Restarts(context.Background(), "agent")
	require.NoError(t, err)
	require.Equal(t, before, after, "no attempt ends the agent")
}

// A pod gets what it was granted and no more, with any spec.
func TestCheatsBySpec(t *testing.T) { testCheats(t, specCheats) }

// Amounts that make no sense are refused, and none of them is taken for another.
func TestCheatsByNumbers(t *testing.T) { testCheats(t, numberCheats) }
