//go:build root

// Package image_test runs the container image that install/image makes, on a real containerd: its programs
// start without a shell, a distribution or a right, and the agent in it connects to the runtime with what the
// chart gives it and no more.
package image_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/harness"
)

const image = "gpuslice.test/gpuslice:1"

// build makes the image, into a directory.
func build(t *testing.T) (dir string) {
	t.Helper()
	repository, err := harness.Repository()
	require.NoError(t, err)
	dir = t.TempDir()
	run := exec.Command("go", "run", ".", "-repository", repository, "-out", dir, "-name", image, "-version", "test")
	run.Dir = filepath.Join(repository, "install", "image")
	said, err := run.CombinedOutput()
	require.NoError(t, err, "%s", said)
	return dir
}

// newNode is a node without an agent, on which the image is known.
func newNode(t *testing.T) *harness.Node {
	t.Helper()
	ctx := context.Background()
	n, err := harness.NewNode(ctx, harness.NodeOptions{NoAgent: true})
	t.Cleanup(func() {
		require.NoError(t, n.Close(context.Background()))
	})
	require.NoError(t, err)
	require.NoError(t, n.Import(ctx, filepath.Join(build(t), "gpuslice.tar")))
	return n
}

// capabilities are the agent's in the chart: test/chart keeps the table, with a reason for each.
var capabilities = []string{"SYS_PTRACE", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_CHROOT"}

// nothing leaves a container no right but these capabilities, by the chart's profile of system calls.
func nothing(t *testing.T, capabilities ...string) func(*cri.LinuxContainerSecurityContext) {
	repository, err := harness.Repository()
	require.NoError(t, err)
	return func(s *cri.LinuxContainerSecurityContext) {
		s.NoNewPrivs = true
		s.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: capabilities}
		s.NamespaceOptions.Pid = cri.NamespaceMode_NODE
		s.Seccomp = &cri.SecurityProfile{
			ProfileType:  cri.SecurityProfile_Localhost,
			LocalhostRef: filepath.Join(repository, "install/charts/gpuslice/files/seccomp/agent.json"),
		}
	}
}

func TestImage(t *testing.T) {
	n := newNode(t)
	t.Run("programs start as user 65532", func(t *testing.T) { starts(t, n) })
	t.Run("the agent connects", func(t *testing.T) { connects(t, n) })
}

// The Dockerfile makes an image of the same root, without a network.
func TestDockerfile(t *testing.T) {
	ctx := context.Background()
	m, err := harness.NewMachine(ctx, "H200")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	d, err := harness.NewDockerd(ctx, m, harness.DockerdOptions{})
	t.Cleanup(func() {
		if d != nil {
			require.NoError(t, d.Close(context.Background()))
		}
	})
	require.NoError(t, err)
	repository, err := harness.Repository()
	require.NoError(t, err)
	_, err = d.Docker(ctx, "build", "--network=none", "--build-arg=VERSION=v1", "--tag="+image,
		"--file="+filepath.Join(repository, "install/image/Dockerfile"), build(t))
	require.NoError(t, err)
	out, err := d.Docker(ctx, "run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL", image, "--version")
	require.NoError(t, err)
	require.Contains(t, out, "gpuslice version")
	label, err := d.Docker(ctx, "inspect", "--format={{index .Config.Labels \"org.opencontainers.image.version\"}} {{.Config.User}}", image)
	require.NoError(t, err)
	require.Equal(t, "v1 65532:65532", strings.TrimSpace(label))
}

// starts runs each program of the image, as user 65532.
func starts(t *testing.T, n *harness.Node) {
	ctx := context.Background()
	pod, err := n.RunPod(ctx, harness.Pod{Name: "programs", HostPID: true})
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		command []string
		says    string
	}{
		"cli":       {[]string{"/usr/local/bin/gpuslice", "--version"}, "gpuslice version"},
		"own":       {nil, "Usage:"}, // the image's
		"agent":     {[]string{"/usr/local/bin/gpuslice-agent", "--version"}, "gpuslice-agent version"},
		"scheduler": {[]string{"/usr/local/bin/gpuslice-scheduler", "--version"}, "gpuslice-scheduler version"},
		"webhook":   {[]string{"/usr/local/bin/gpuslice-scheduler", "webhook", "--help"}, "--our-scheduler"},
		"runtime":   {[]string{"/usr/local/bin/gpuslice-runtime", "--version"}, "gpuslice-runtime version"}, // and an error: there is no runc in the image
	} {
		container := harness.Container{Name: name, Image: image, Command: tc.command, User: 65532, ReadOnly: true, Security: nothing(t)}
		id, err := pod.Start(ctx, container)
		require.NoError(t, err, name)
		code, err := n.WaitExit(ctx, id, time.Minute)
		require.NoError(t, err, name)
		said, err := pod.Logs(container)
		require.NoError(t, err, name)
		require.Equal(t, name == "runtime", code != 0, "%s: %s", name, said)
		require.Contains(t, said, tc.says, name)
	}
	require.NoError(t, pod.Remove(ctx))
}

// connects runs the agent as the chart does: capabilities, profile, read-only root, directories.
func connects(t *testing.T, n *harness.Node) {
	ctx := context.Background()
	nvml, err := harness.Artefact("sim", "libnvidia-ml.so.1")
	require.NoError(t, err)
	var mounts []*cri.Mount
	for dir, readOnly := range map[string]bool{
		n.StateDir(): false, n.LibraryDir(): false, filepath.Dir(n.SimState()): false, filepath.Dir(n.NRISocket()): true, n.CDIDir(): true,
	} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		mount := &cri.Mount{HostPath: dir, ContainerPath: dir, Readonly: readOnly}
		if dir == n.StateDir() {
			mount.Propagation = cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		}
		mounts = append(mounts, mount)
	}
	mounts = append(mounts, &cri.Mount{HostPath: filepath.Dir(nvml), ContainerPath: "/driver", Readonly: true})
	agents, err := n.RunPod(ctx, harness.Pod{Name: "agent", HostPID: true})
	require.NoError(t, err)
	agent := harness.Container{
		Name: "agent", Image: image, ReadOnly: true, Mounts: mounts, Security: nothing(t, capabilities...), Env: []string{"SIMGPU_STATE=" + n.SimState()},
		Command: []string{
			"/usr/local/bin/gpuslice-agent",
			"--node-name=" + harness.NodeName, "--state-dir=" + n.StateDir(), "--library-dir=" + n.LibraryDir(),
			"--library=/usr/local/lib/gpuslice/libvgpu.so", "--nri-socket=" + n.NRISocket(), "--nvml-library=/driver/libnvidia-ml.so.1",
			"--cdi-spec-dirs=" + n.CDIDir(), "--pod-resources-socket=", "--device-plugin-dir=", "--audit-interval=1s", "--log-level=debug",
			"--health-address=" + n.HealthAddress(),
		},
	}
	_, err = agents.Start(ctx, agent)
	require.NoError(t, err)
	log := func() string {
		text, err := agents.Logs(agent)
		require.NoError(t, err)
		return text
	}
	require.NoError(t, harness.Until(ctx, time.Minute, func(ctx context.Context) error {
		if err := n.Health(ctx, "/readyz"); err != nil {
			return fmt.Errorf("%w: %s", err, log())
		}
		return nil
	}))

	kernel := held(t, n)
	require.Equal(t, []string{"2", "1", "00000000002c0004", "00000000002c0004"}, // CAP_SYS_ADMIN is bit 21, CAP_SYS_PTRACE 19, CAP_SYS_CHROOT 18, CAP_DAC_READ_SEARCH 2
		[]string{kernel["Seccomp"], kernel["NoNewPrivs"], kernel["CapEff"], kernel["CapBnd"]})

	status, err := n.Status(ctx)
	require.NoError(t, err)
	pod, err := n.RunPod(ctx, harness.Pod{Name: "slice", Annotations: map[string]string{"gpuslice.io/grant": fmt.Sprintf(
		`{"version":1,"node":%q,"containers":{"main":[{"uuid":%q,"memoryMiB":4096,"cores":25}]}}`, harness.NodeName, status.GPUs[0].UUID)}})
	require.NoError(t, err)
	// A user other than root: the agent sees its processes only by its capabilities.
	job := harness.Container{Name: "main", User: 1000, Command: []string{harness.WorkloadDir + "/hold", "--mib=300"}}
	id, err := pod.Start(ctx, job)
	require.NoError(t, err, log())
	require.NoError(t, harness.Until(ctx, time.Minute, func(context.Context) error {
		said, err := pod.Logs(job)
		if err == nil && harness.KeyValues(said)["ready"] != "1" {
			err = fmt.Errorf("the job is not ready: %s", said)
		}
		return err
	}))
	var turn string
	require.NoError(t, limiter.EachTurn(n.StateDir(), func(gpu string, id limiter.TurnID) { turn = limiter.TurnPath(n.StateDir(), gpu, id) }))
	require.NoError(t, os.Truncate(turn, 100))
	// The audit finds a process on the GPU without a grant: by NVML, with the library that the chart gives
	// the agent, and the host's PIDs.
	thief, err := n.RunPod(ctx, harness.Pod{Name: "thief"})
	require.NoError(t, err)
	_, err = thief.Start(ctx, harness.Container{
		Name: "main", Command: []string{harness.WorkloadDir + "/hold", "--mib=100"},
		Env:    []string{"SIMGPU_STATE=" + n.SimState(), "LD_LIBRARY_PATH=/driver"},
		Mounts: []*cri.Mount{{HostPath: filepath.Dir(nvml), ContainerPath: "/driver", Readonly: true}, {HostPath: filepath.Dir(n.SimState()), ContainerPath: filepath.Dir(n.SimState())}},
	})
	require.NoError(t, err)
	require.NoError(t, harness.Until(ctx, time.Minute, func(context.Context) error {
		for line := range strings.Lines(log()) {
			if strings.Contains(line, "violation found") {
				require.Contains(t, line, "kind=ungranted-process")
				require.Contains(t, line, "/thief")
				return nil
			}
		}
		said, err := thief.Logs(harness.Container{Name: "main"})
		return fmt.Errorf("the thief is not found: %v %s %s", err, said, log())
	}))
	require.NoError(t, thief.Remove(ctx))
	require.NoError(t, harness.Until(ctx, 60*time.Second, func(context.Context) error {
		if info, err := os.Stat(turn); err != nil || info.Size() < 4096 {
			return fmt.Errorf("the turn file is not restored: %v %s", err, log())
		}
		return nil
	}))
	stdout, stderr, code, err := n.Exec(ctx, id, harness.WorkloadDir+"/meminfo")
	require.NoError(t, err)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, fmt.Sprint(4096<<20), "the container sees its share")

	// Only the agent may write there, and each container its own usage and turns.
	for _, dir := range []string{n.StateDir(), n.LibraryDir()} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			require.NoError(t, err)
			info, err := d.Info()
			require.NoError(t, err)
			turns := filepath.Dir(filepath.Dir(path)) == vgpufs.TurnsDir(n.StateDir()) && filepath.Base(path) != "table"
			if filepath.Base(path) != "usage" && !turns && info.Mode().Type() != os.ModeSymlink {
				require.Zero(t, info.Mode().Perm()&0o022, "%s: %v", path, info.Mode())
			}
			return nil
		}))
	}
	require.NoError(t, pod.Remove(ctx))
	left, err := harness.ClaimMounts(n.StateDir())
	require.NoError(t, err)
	require.Equal(t, []string{n.StateDir()}, left, "the agent removed the container's file system, which it had mounted in the runtime's mount namespace")
	for _, refusal := range []string{"permission denied", "operation not permitted", "read-only file system", "function not implemented"} {
		for line := range strings.Lines(log()) {
			require.NotContains(t, line, refusal)
		}
	}
	require.NoError(t, agents.Remove(ctx))
}

// held returns the restrictions that the kernel enforces on the agent, from /proc/PID/status.
func held(t *testing.T, n *harness.Node) map[string]string {
	t.Helper()
	programs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, path := range programs {
		line, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(line), "/usr/local/bin/gpuslice-agent\x00") || !strings.Contains(string(line), n.StateDir()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		require.NoError(t, err)
		said := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			said[key] = strings.TrimSpace(value)
		}
		return said
	}
	require.Fail(t, "no agent runs")
	return nil
}
