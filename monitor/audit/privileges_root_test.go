//go:build root

package audit

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/procfs"
)

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
