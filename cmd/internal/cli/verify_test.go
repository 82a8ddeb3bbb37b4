//go:build linux && cgo

package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The variable that the kubelet sets for a Service is an address, also of IPv6.
func TestAgentAddress(t *testing.T) {
	for agent, want := range map[string]string{
		"tcp://10.0.0.1:9394": "10.0.0.1:9394", "tcp://[fd00::1]:9394": "[fd00::1]:9394", "http://agent:9394/": "agent:9394", "agent:9394": "agent:9394",
	} {
		require.Equal(t, want, verifyOptions{agent: agent}.agentAddress())
	}
}

func TestVerifyIsCalledRight(t *testing.T) {
	for _, args := range [][]string{
		{"verify", "--sockets", "/x"}, {"verify", "--sockets", "/x", "--pod", "a/b"}, {"verify", "--agent", "x:1"}, {"verify", "--timeout", "59s"},
		{"verify", "--engine", "lxc"}, {"verify", "more"}, {"verify", "-o", "name"}, {"verify", "--probe", "/nowhere/probe"},
	} {
		status, out, stderr := gpuslice(args...)
		require.Equal(t, exitUsage, status, "%q: %s", args, stderr)
		require.Empty(t, out)
		require.NotEmpty(t, stderr)
	}
}
