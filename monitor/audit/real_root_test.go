//go:build root

package audit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/procfs"
)

func TestWhoseAProcessIs(t *testing.T) {
	for version, root := range hierarchies(t) {
		t.Run(version, func(t *testing.T) {
			i := inspector(t, map[string]string{idA: "default", idB: "infra"})
			pid := begin(t, 0, "sleep", "1000").Process.Pid
			p := look(t, i, pid)
			assert.Equal(t, Container{}, p.Container, "of the host")
			assert.Equal(t, "sleep", p.Name)

			join(t, root, "gpuslice-test-"+version+"/"+idA, pid)
			p = look(t, i, pid)
			assert.Equal(t, Container{ID: idA, Namespace: "default", Pod: "p", Name: "main"}, p.Container)
			assert.Empty(t, p.Spared)
			assert.False(t, p.Exempt)

			join(t, root, "gpuslice-test-"+version+"/"+idB, pid)
			assert.True(t, look(t, i, pid).Exempt)

			stranger := strings.Repeat("c", 64)
			join(t, root, "gpuslice-test-"+version+"/"+stranger, pid)
			p = look(t, i, pid)
			assert.Equal(t, Container{ID: stranger}, p.Container)
			assert.Empty(t, p.Spared, "a container that no pod's is has no namespace to be exempt")
			join(t, root, "kubepods-gpuslice-test-"+version+"/pod"+uid+"/"+stranger, pid)
			p = look(t, i, pid)
			assert.Equal(t, Container{ID: stranger, PodUID: uid}, p.Container)
			assert.NotEmpty(t, p.Spared, "a pod's: its namespace may be exempt")

			i.own = stranger
			join(t, root, "gpuslice-test-"+version+"/"+stranger, pid)
			assert.NotEmpty(t, look(t, i, pid).Spared, "our own container")
		})
	}
}

// A process that goes to a group outside of its container's is its family's still, also
// in a PID namespace within the container's, and in the host's.
func TestProcessThatLeftItsGroup(t *testing.T) {
	for version, root := range hierarchies(t) {
		for _, test := range []struct {
			flags uintptr
			line  string
		}{
			{syscall.CLONE_NEWPID, "sleep 1000 & wait"},
			{syscall.CLONE_NEWPID, "unshare --pid --fork sh -c 'sleep 1000 & wait' & wait"},
			{0, "sleep 1000 & wait"},
		} {
			t.Run(version, func(t *testing.T) {
				i := inspector(t, map[string]string{idA: "default"})
				first := begin(t, test.flags, "sh", "-c", test.line).Process.Pid
				join(t, root, "gpuslice-test-"+version+"/"+idA, first)
				last := descendant(t, first, "sleep")
				require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(strconv.Itoa(last)), 0))
				assert.Equal(t, idA, look(t, i, last).Container.ID)
			})
		}
	}
	i := inspector(t, nil)
	first := begin(t, syscall.CLONE_NEWPID, "sleep", "1000").Process.Pid
	assert.Empty(t, look(t, i, first).Container.ID, "a PID namespace by itself makes no container")
}

// descendant waits for a process' descendant of a name.
func descendant(t *testing.T, pid int, name string) int {
	t.Helper()
	for found := pid; ; {
		s, err := procfs.FS("/proc").Stat(strconv.Itoa(found))
		require.NoError(t, err)
		if s.Name == name {
			return found
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", found, found))
		require.NoError(t, err)
		if children := strings.Fields(string(text)); len(children) > 0 {
			found, err = strconv.Atoi(children[0])
			require.NoError(t, err)
		}
	}
}

// A process with an ended first thread is inspected through another one.
func TestProcessWithoutItsFirstThread(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.Command(self)
	c.Env = append(os.Environ(), headless+"=1")
	_, err = c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	pid := c.Process.Pid
	for s := (procfs.Status{}); !s.Zombie; {
		s, err = procfs.FS("/proc").Stat(strconv.Itoa(pid))
		require.NoError(t, err)
	}
	for version, root := range hierarchies(t) {
		join(t, root, "gpuslice-test-"+version+"/"+idA, pid)
		i := inspector(t, map[string]string{idA: "default"})
		p := look(t, i, pid)
		assert.Equal(t, idA, p.Container.ID, version)

		_, dir, err := i.proc.Process(pid)
		require.NoError(t, err)
		m, err := i.maps(p.Process, dir, &Claim{})
		require.NoError(t, err)
		assert.Equal(t, mapped{driver: false, limiter: LimiterAbsent, files: FilesUnknown}, m)
		own, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "maps"))
		assert.True(t, err != nil || len(own) == 0, "what is seen of it by its first thread")
	}
	killed, err := kill(look(t, inspector(t, nil), pid).Process, func() error { return nil })
	require.NoError(t, err)
	assert.True(t, killed)
	_ = c.Wait()
}

// without starts a process without a capability, and with a file open.
func without(t *testing.T, capability string, file *os.File) *exec.Cmd {
	c := exec.Command("setpriv", "--bounding-set=-"+capability, "sh", "-c", "echo ready; exec sleep 1000")
	if file != nil {
		c.ExtraFiles = []*os.File{file}
	}
	startReady(t, c)
	return c
}

// A container with a share and CAP_SYS_ADMIN is reported and not killed, on a GPU or not.
func TestAuditorReportsPrivilegedContainers(t *testing.T) {
	a := newAudited(t, true)
	idC := strings.Repeat("c", 64)
	for _, id := range []string{idA, idB, idC} {
		a.claims = append(a.claims, *granted(id, limit(gpuA, 1000)))
		a.claims[len(a.claims)-1].Dir = t.TempDir()
	}
	admin, exempt, plain, free := begin(t, 0, "sleep", "1000"), begin(t, 0, "sleep", "1000"), without(t, "sys_admin", nil), begin(t, 0, "sleep", "1000")
	inside := begin(t, syscall.CLONE_NEWUSER, "sleep", "1000")
	for c, id := range map[*exec.Cmd]string{admin: idA, exempt: idB, plain: idC, inside: idC, free: strings.Repeat("d", 64)} {
		join(t, a.root, "gpuslice-test-audit/"+id, c.Process.Pid)
	}
	a.looks(2 * fullPass)
	require.Equal(t, 1.0, a.lasting(PrivilegedContainer), a.log.String())
	assert.Equal(t, idA, a.Violations()[0].Container.ID)
	assert.Contains(t, a.log.String(), "kind=privileged-container")
	assert.True(t, lives(admin))
	assert.Equal(t, 1.0, a.total(PrivilegedContainer, actionReported), "one violation over several looks")
}

// A runtime's process that prepares a container, or an exec, has all capabilities, which is no violation. With a slow hook it
// is seen in several passes. A tenant's process with that name is reported later.
func TestAuditorKnowsARuntimeThatPreparesAContainer(t *testing.T) {
	a := newAudited(t, true)
	a.claims = append(a.claims, *granted(idA, limit(gpuA, 1000)))
	a.claims[0].Dir = t.TempDir()
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "runc:[2:INIT]")
	require.NoError(t, os.Symlink(sleep, name))
	preparing := begin(t, 0, name, "1000")
	join(t, a.root, "gpuslice-test-audit/"+idA, preparing.Process.Pid)
	began := uptime()
	a.config.Inspector.uptime = func() time.Duration { return began + settingUpFor - time.Second }
	a.looks(2 * fullPass)
	require.Zero(t, a.lasting(PrivilegedContainer), a.log.String())
	a.config.Inspector.uptime = func() time.Duration { return began + settingUpFor + time.Second }
	a.looks(2 * fullPass)
	require.Equal(t, 1.0, a.lasting(PrivilegedContainer), a.log.String())
}

// A privileged container with a share that has other GPUs open by NVML is reported and not killed.
func TestAuditorSparesDescriptorsOfPrivilegedContainers(t *testing.T) {
	a := newAudited(t, true)
	a.config.Inspector.Nodes = func() map[uint64]DeviceNode { return nodes }
	claim := *granted(idA, limit(gpuA, 1000))
	claim.Dir = t.TempDir()
	a.claims = []Claim{claim}
	beyond := func() *os.File { return openAs(t, zeroMinor, os.O_RDONLY) }
	privileged, admin := holding(t, beyond()), without(t, "mknod", beyond())
	for _, pid := range []int{privileged, admin.Process.Pid} {
		join(t, a.root, "gpuslice-test-audit/"+idA, pid)
	}
	a.looks(3)
	status, err := procfs.FS("/proc").Stat(strconv.Itoa(privileged))
	require.NoError(t, err)
	assert.False(t, status.Zombie)
	assert.EqualError(t, admin.Wait(), "signal: killed")
	assert.Equal(t, 1.0, a.lasting(ForeignDescriptor))
	assert.Equal(t, 1.0, a.lasting(PrivilegedContainer))
}
