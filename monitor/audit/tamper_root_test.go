//go:build root

package audit

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/procfs"
	"github.com/gpuslice/gpuslice/limiter"
)

// A lock or a lease on a claim's files is a violation. With the policy kill, the processes of the container that hold it
// are killed, on a GPU or not.
func TestAuditorEndsWhoHoldsALockOrALease(t *testing.T) {
	for _, name := range []string{"flock", "read-lease"} {
		t.Run(name, func(t *testing.T) {
			a := newAudited(t, true)
			claim := *granted(idA, limit(gpuA, 1000))
			claim.Dir = madeClaim(t)
			limits := limiter.LimitsPath(claim.Dir)
			start := func() (*exec.Cmd, string) {
				attack := exec.Command("../../build/workloads/attack", name, limits)
				out, err := attack.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, attack.Start())
				t.Cleanup(func() { _ = attack.Process.Kill(); _ = attack.Wait() })
				line, err := bufio.NewReader(out).ReadString('\n')
				require.NoError(t, err)
				join(t, a.root, "gpuslice-test-audit/"+idA, attack.Process.Pid)
				return attack, line
			}
			attack, line := start() // before the agent has the files
			require.Equal(t, "ready=1\n", line)
			a.claims = []Claim{claim}
			neighbour := begin(t, 0, "sleep", "1000")
			join(t, a.root, "gpuslice-test-audit/"+idA, neighbour.Process.Pid)
			a.looks(2)
			require.Equal(t, 1.0, a.lasting(TamperedFiles))
			assert.Contains(t, a.events[0], "GPUFilesTampered")
			assert.Contains(t, a.events[0], `("attack") holds a l`)
			assert.Contains(t, a.events[0], "on its limits file (/.gpuslice/limits)")
			a.looks(2)
			assert.EqualError(t, attack.Wait(), "signal: killed")
			assert.True(t, lives(neighbour))
			a.looks(overAfter)
			assert.Zero(t, a.lasting(TamperedFiles))
		})
	}
}

// The process that took a lock ends and leaves it to its child. The child is killed, and no other process of the container.
func TestAuditorEndsTheChildThatHasTheLock(t *testing.T) {
	a := newAudited(t, true)
	claim := *granted(idA, limit(gpuA, 1000))
	claim.Dir = madeClaim(t)
	a.claims = []Claim{claim}
	limits, err := os.Open(limiter.LimitsPath(claim.Dir))
	require.NoError(t, err)
	defer limits.Close()
	first := exec.Command("sh", "-c", "flock --exclusive --nonblock 3 || exit 1; sleep 1000 >/dev/null 2>&1 & echo $!")
	first.ExtraFiles = []*os.File{limits}
	out, err := first.Output()
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(string(out)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
	join(t, a.root, "gpuslice-test-audit/"+idA, child)
	neighbour := begin(t, 0, "sleep", "1000")
	join(t, a.root, "gpuslice-test-audit/"+idA, neighbour.Process.Pid)
	limits.Close()
	a.looks(2)
	require.Equal(t, 1.0, a.lasting(TamperedFiles))
	a.looks(1)
	assert.Equal(t, 1.0, a.total(TamperedFiles, actionKilled))
	assert.True(t, lives(neighbour))
	require.Eventually(t, func() bool {
		s, err := procfs.FS("/proc").Stat(strconv.Itoa(child))
		return err != nil || s.Zombie
	}, time.Minute, time.Millisecond, "the child ends")
	a.looks(overAfter)
	assert.Zero(t, a.lasting(TamperedFiles))
}
