//go:build hosts

package inside_test

import (
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// A container of docker under docker's own AppArmor profile has its share and no more.
func TestDockerWithAppArmor(t *testing.T) {
	m := newMachine(t)
	d := newDocker(t, m, harness.DockerdOptions{})
	id := confined(t, d, m)
	out, err := d.Docker(context.Background(), "exec", id, "/bin/cat", "/proc/1/attr/current")
	require.NoError(t, err)
	require.Equal(t, "docker-default (enforce)", strings.TrimSpace(out))
	holds("docker's profile is enforced")
	removed(t, d, m, id)
}

// A pod under containerd's AppArmor profile has its share and no more, and the audit can see its processes.
func TestContainerdWithAppArmor(t *testing.T) {
	ctx := context.Background()
	n, err := harness.NewNode(ctx, harness.NodeOptions{AgentArgs: []string{"--audit-interval=1s"}})
	t.Cleanup(func() { require.NoError(t, n.Close(ctx)) })
	require.NoError(t, err)
	status, err := n.Machine.Status(ctx)
	require.NoError(t, err)
	pod, err := n.RunPod(ctx, harness.Pod{Name: "train", Annotations: map[string]string{
		"gpuslice.io/grant": fmt.Sprintf(`{"version":1,"node":%q,"containers":{"main":[{"uuid":%q,"memoryMiB":3000,"cores":30}]}}`, harness.NodeName, status.GPUs[0].UUID),
	}})
	require.NoError(t, err)
	container := harness.Container{Name: "main", Command: []string{harness.WorkloadDir + "/hold", "--mib=100"}}
	id, err := pod.Start(ctx, container)
	require.NoError(t, err)
	out, _, _, err := n.Exec(ctx, id, "/bin/cat", "/proc/1/attr/current")
	require.NoError(t, err)
	require.Equal(t, "cri-containerd.apparmor.d (enforce)", strings.TrimSpace(out))
	holds("containerd's profile is enforced")
	require.Equal(t, fmt.Sprint(3000<<20), exec(t, n, id, "meminfo", 0)["device.0.total_bytes"])
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", exec(t, n, id, "alloc", 0)["result"])
	holds("the limit is seen and kept")
	until(t, func(ctx context.Context) error {
		status, err := n.Machine.Status(ctx)
		if err == nil && (len(status.Containers) != 1 || status.Containers[0].Shares[0].Processes == 0) {
			err = fmt.Errorf("the process is not seen: %v", status.Containers)
		}
		return err
	})
	require.NotContains(t, n.Agent.LogTail(2000), "violation found")
	holds("the agent sees its process, and no violation")
	require.NoError(t, pod.Remove(ctx))
}

// With SELinux enforcing, a container of docker is in container_t, reads the limiter and its limits by the labels that
// docs/INSTALL.md sets, and writes its usage; the tmpfs of its files has the label of the state directory.
func TestDockerWithSELinux(t *testing.T) {
	enforcing, err := os.ReadFile("/sys/fs/selinux/enforce")
	require.NoError(t, err)
	require.Equal(t, "1", string(enforcing))
	t.Cleanup(func() {
		if t.Failed() {
			out, err := osexec.Command("/bin/sh", "-c", "dmesg | grep -w denied | tail -40").CombinedOutput()
			t.Logf("what was denied: %v\n%s", err, out)
		}
	})
	m := newMachine(t)
	label(t, "container_file_t", m.StateDir(), filepath.Dir(m.SimState()), filepath.Join(m.Dir, "dev"))
	require.NoError(t, os.MkdirAll(m.LibraryDir(), 0o755))
	driver, err := harness.Artefact("sim")
	require.NoError(t, err)
	label(t, "container_ro_file_t", m.LibraryDir(), driver)
	d := newDocker(t, m, harness.DockerdOptions{Config: map[string]any{"selinux-enabled": true}})
	id := confined(t, d, m)
	out, err := d.Docker(context.Background(), "exec", id, "/bin/cat", "/proc/1/attr/current")
	require.NoError(t, err)
	process := strings.Trim(out, "\x00\n")
	require.Regexp(t, `^system_u:system_r:container_t:s0:c\d+,c\d+$`, process)
	holds("the container is confined: %s", process)
	claims, err := filepath.Glob(filepath.Join(m.StateDir(), "containers", "*", "vgpu", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, claims)
	for _, file := range claims {
		require.Contains(t, labelOf(t, file), ":container_file_t:s0", file)
	}
	holds("its files have the label of the state directory")
	removed(t, d, m, id)
}

// confined starts a container with a share, and checks what it sees and gets.
func confined(t *testing.T, d *harness.Dockerd, m *harness.Machine) (id string) {
	ctx := context.Background()
	out, err := d.Docker(ctx, "run", "--detach", "--network", "none", "--runtime", "gpuslice", "-e", "GPUSLICE_MEMORY=3000MiB", "-e", "GPUSLICE_CORES=30",
		harness.WorkloadImage, harness.WorkloadDir+"/hold", "--mib=100")
	require.NoError(t, err)
	id = strings.TrimSpace(out)
	until(t, func(ctx context.Context) error {
		out, err := d.Docker(ctx, "logs", id)
		if err == nil && harness.KeyValues(out)["ready"] != "1" {
			err = fmt.Errorf("not ready: %s", out)
		}
		return err
	})
	out, err = d.Docker(ctx, "exec", id, harness.WorkloadDir+"/meminfo")
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(3000<<20), harness.KeyValues(out)["device.0.total_bytes"])
	out, err = d.Docker(ctx, "exec", id, harness.WorkloadDir+"/alloc")
	require.NoError(t, err)
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", harness.KeyValues(out)["result"])
	holds("the limit is seen and kept")
	_, err = m.CLI(ctx, "resize", id, "--memory", "2000MiB")
	require.NoError(t, err)
	out, err = d.Docker(ctx, "exec", id, harness.WorkloadDir+"/meminfo")
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(2000<<20), harness.KeyValues(out)["device.0.total_bytes"])
	holds("a resize is seen")
	return id
}

func removed(t *testing.T, d *harness.Dockerd, m *harness.Machine, id string) {
	_, err := d.Docker(context.Background(), "rm", "--force", id)
	require.NoError(t, err)
	status, err := m.Status(context.Background())
	require.NoError(t, err)
	require.Empty(t, status.Containers)
	holds("the share ends with the container")
}

func newMachine(t *testing.T) *harness.Machine {
	m, err := harness.NewMachine(context.Background(), "H200")
	t.Cleanup(func() {
		if m != nil {
			require.NoError(t, m.Close())
		}
	})
	require.NoError(t, err)
	require.NoError(t, m.WriteRuntimeConfig(""))
	return m
}

func newDocker(t *testing.T, m *harness.Machine, o harness.DockerdOptions) *harness.Dockerd {
	d, err := harness.NewDockerd(context.Background(), m, o)
	t.Cleanup(func() {
		if d == nil {
			return
		}
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", d.LogTail(40))
		}
		require.NoError(t, d.Close(context.Background()))
	})
	require.NoError(t, err)
	return d
}
