//go:build attacks

package attacks

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/audit"
	"github.com/gpuslice/gpuslice/test/harness"
)

// audited is a node with an agent that audits every second and kills after another second.
func audited(t testing.TB) *harness.Node {
	return newNode(t, harness.NodeOptions{AgentArgs: []string{"--audit-interval=1s", "--on-violation=kill", "--violation-grace=1s"}})
}

// forged is a directory with limits of a whole GPU, mounted at /forged.
func forged(t testing.TB, uuid string) []*cri.Mount {
	dir := t.TempDir()
	require.NoError(t, limiter.WriteLimits(filepath.Join(dir, "limits"), limiter.Limits{
		Devices: []limiter.DeviceLimit{{UUID: uuid, MemoryLimitBytes: 140000 * mib}},
	}))
	return []*cri.Mount{{HostPath: dir, ContainerPath: "/forged", Readonly: true}}
}

// reported returns nil when the agent has reported the pod's container for that kind.
func reported(n *harness.Node, kind, pod string) error {
	if !regexp.MustCompile(fmt.Sprintf(`violation found" kind=%s .*pod=\S*/%s `, kind, pod)).MatchString(n.Agent.LogTail(2000)) {
		return fmt.Errorf("%s is not reported as %s", pod, kind)
	}
	return nil
}

// A tenant puts files of its own in the place of its limits or of the limiter. That fails, or the audit
// finds and ends it, and no other process.
func TestForgedFilesAreFound(t *testing.T) {
	t.Parallel()
	n := audited(t)
	uuid := gpu(t, n, 0)
	hold := " " + workload("hold") + " --mib=300"
	admin := func(s *cri.LinuxContainerSecurityContext) {
		s.Capabilities = &cri.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
	}
	const library = "cat /.gpuslice/libvgpu.so >/tmp/libvgpu.so; "
	tests := []struct {
		name, line string
		kind       string // of the violation; empty: the kernel refuses the attack
		container  harness.Container
	}{
		{"rename", workload("attack") + " move /forged/limits" + hold, "", harness.Container{}},
		{"namespace", workload("attack") + " unshare /forged/limits:/.gpuslice/limits" + hold, "foreign-files", harness.Container{}},
		{"namespace-user", workload("attack") + " unshare /forged/limits:/.gpuslice/limits" + hold, "foreign-files", harness.Container{User: 1000}},
		{"usage", "cat /.gpuslice/usage >/tmp/usage; " + workload("attack") + " unshare /tmp/usage:/.gpuslice/usage" + hold, "foreign-files", harness.Container{}},
		{"sys-admin", workload("attack") + " mount /forged/limits:/.gpuslice/limits" + hold, "foreign-files", harness.Container{Security: admin}},
		{"library", library + workload("attack") + " unshare /tmp/libvgpu.so:/.gpuslice/libvgpu.so" + hold, "no-limiter", harness.Container{}},
	}
	neighbour, id := run(t, n, harness.Pod{Name: "neighbour", Annotations: granted(uuid, 4000, 10)}, harness.Container{Command: []string{workload("hold"), "--mib=300"}})
	wait(t, neighbour, "ready", "1")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := test.container
			c.Mounts = forged(t, uuid)
			c.Command = []string{"/bin/sh", "-c", test.line + "; echo ended=$?; sleep 1000000"}
			s, _ := run(t, n, harness.Pod{Name: test.name, Annotations: granted(uuid, 1000, 10)}, c)
			until(t, func(context.Context) error {
				log, err := s.Logs(harness.Container{Name: "main"})
				said := harness.KeyValues(log)
				switch {
				case err != nil:
					return err
				case test.kind == "" && said["failed"] != "" && said["ended"] == "1" && said["ready"] == "":
					return nil
				case test.kind == "" || said["ended"] != "137":
					return errors.Join(fmt.Errorf("the attacker goes on: %s", log), reported(n, test.kind, test.name))
				}
				return reported(n, test.kind, test.name)
			})
			require.NoError(t, s.Remove(context.Background()))
		})
	}
	require.NotContains(t, n.Agent.LogTail(2000), "/neighbour ")
	require.Equal(t, "1", exec(t, n, id, workload("meminfo"))["device_count"])
}

// The state directory is lost: containers have other files mapped than their restored claims, and are not ended for it.
func TestRestoredClaimIsNotEnded(t *testing.T) {
	t.Parallel()
	n := audited(t)
	uuid := gpu(t, n, 0)
	restored, _ := run(t, n, harness.Pod{Name: "restored", Annotations: granted(uuid, 1000, 10)}, harness.Container{Command: []string{workload("hold"), "--mib=300"}})
	wait(t, restored, "ready", "1")
	require.NoError(t, n.Agent.Stop(patience))
	require.NoError(t, harness.LoseClaims(n.StateDir()))
	require.NoError(t, n.StartAgent(context.Background()))
	// When this one is ended, the other was looked at as often.
	_, id := run(t, n, harness.Pod{Name: "forger", Annotations: granted(uuid, 1000, 10)}, harness.Container{
		Mounts: forged(t, uuid), Command: []string{workload("attack"), "unshare", "/forged/limits:/.gpuslice/limits", workload("hold"), "--mib=300"},
	})
	code, err := n.WaitExit(context.Background(), id, patience)
	require.NoError(t, err)
	require.Equal(t, 137, code)
	require.NotRegexp(t, `kind=.*/restored `, n.Agent.LogTail(2000))
	log, err := restored.Logs(harness.Container{Name: "main"})
	require.NoError(t, err)
	require.Empty(t, harness.KeyValues(log)["done"])
	require.NoError(t, restored.Remove(context.Background()))
}

// passDescriptor has a container with a share give a descriptor of a file to a container without one, by the attack "give" or
// "give-path", over a unix socket in a volume of both. It returns their IDs.
func passDescriptor(t *testing.T, n *harness.Node, attack, file string) (giver, taker string) {
	shared := []*cri.Mount{{HostPath: t.TempDir(), ContainerPath: "/shared"}}
	pod, giver := run(t, n, harness.Pod{Name: "giver", Annotations: granted(gpu(t, n, 0), 1000, 10)},
		harness.Container{Mounts: shared, Command: []string{workload("attack"), attack, file + ":/shared/socket"}})
	wait(t, pod, "ready", "1")
	pod, taker = run(t, n, harness.Pod{Name: "taker"},
		harness.Container{Mounts: shared, Command: []string{workload("attack"), "take", "/shared/socket"}})
	wait(t, pod, "ready", "1")
	return giver, taker
}

// The audit finds a process of a container without a grant that got a GPU's open device node over a socket. Without a driver no
// GPU's device node can be opened, so an audit that runs in the test takes /dev/full for one.
func TestDescriptorOverASocketIsFound(t *testing.T) {
	t.Parallel()
	n := newNode(t, harness.NodeOptions{})
	uuid := gpu(t, n, 0)
	giver, taker := passDescriptor(t, n, "give", "/dev/full")
	containers := map[string]audit.Container{}
	for id, pod := range map[string]string{giver: "giver", taker: "taker"} {
		containers[id] = audit.Container{ID: id, Namespace: "default", Pod: pod, Name: "main"}
	}
	claims := map[string]*audit.Claim{giver: {Container: containers[giver], Dir: claimDir(n, giver), Devices: []audit.Device{{UUID: uuid, LimitBytes: 1000 * mib}}}}
	inspector := audit.NewInspector("/proc", n.LibraryDir(), func(id string) (c audit.Container, exempt, known bool) {
		c, known = containers[id]
		return c, false, known
	})
	var full unix.Stat_t
	require.NoError(t, unix.Stat("/dev/full", &full))
	inspector.Nodes = func() map[uint64]audit.DeviceNode { return map[uint64]audit.DeviceNode{full.Rdev: {uuid}} }
	var found []audit.Finding
	until(t, func(context.Context) error { // a look at all processes of a busy machine may go on in the next one
		processes, err := inspector.Processes(claims, nil, true)
		found = slices.DeleteFunc(audit.Find(audit.Snapshot{Claims: claims, Processes: processes}), func(f audit.Finding) bool {
			_, ours := containers[f.Container.ID]
			return !ours
		})
		if len(found) == 0 {
			return errors.Join(errors.New("nothing was found"), err)
		}
		return nil
	})
	require.Len(t, found, 1, "%+v", found)
	require.Equal(t, audit.ForeignDescriptor, found[0].Kind)
	require.Equal(t, containers[taker], found[0].Container)
	require.Len(t, found[0].Offenders, 1)
	require.Equal(t, processOf(t, n, taker), found[0].Offenders[0].PID)
	require.Equal(t, []string{uuid}, found[0].Offenders[0].Devices)
	require.Empty(t, found[0].Offenders[0].Spared, "a policy may end it")
}

// A descriptor by O_PATH gives no access to a GPU: the process that got one over a socket is not ended.
func TestPathDescriptorOverASocketIsNoViolation(t *testing.T) {
	t.Parallel()
	n := audited(t)
	passDescriptor(t, n, "give-path", "/dev/nvidia0")
	// When this one is ended, the others were looked at as often.
	_, id := run(t, n, harness.Pod{Name: "forger", Annotations: granted(gpu(t, n, 0), 1000, 10)}, harness.Container{
		Mounts: forged(t, gpu(t, n, 0)), Command: []string{workload("attack"), "unshare", "/forged/limits:/.gpuslice/limits", workload("hold"), "--mib=300"},
	})
	code, err := n.WaitExit(context.Background(), id, patience)
	require.NoError(t, err)
	require.Equal(t, 137, code)
	require.NotRegexp(t, `kind=.*/(giver|taker) `, n.Agent.LogTail(2000))
}
