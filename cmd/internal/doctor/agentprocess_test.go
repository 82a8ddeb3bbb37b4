package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// busyLocks leaves the agent's lock out of the first reads of /proc/locks.
type busyLocks struct {
	*host
	without int
}

func (b *busyLocks) ReadFile(name string) ([]byte, error) {
	if name == "proc/locks" && b.without > 0 {
		b.without--
		return nil, nil
	}
	return b.host.ReadFile(name)
}

func TestAgentIsFoundWhileLocksChange(t *testing.T) {
	e := &exam{Host: &busyLocks{goodHost(t), lockReads - 1}, o: Options{StateDir: "/run/gpuslice"}}
	agent, runs := e.findAgent()
	require.True(t, runs)
	require.Equal(t, 1234, agent.pid)
}
