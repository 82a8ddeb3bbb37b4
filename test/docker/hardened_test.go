//go:build root

package docker_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// hardened: what else a container is started with doesn't change its share.
func hardened(t *testing.T, d docker) {
	for _, test := range []struct {
		description string
		options     []string
	}{
		{"a read-only root file system", []string{"--read-only"}},
		{"a user", []string{"--user", "1000"}},
		{"no capabilities", []string{"--cap-drop", "ALL"}},
		{"no new privileges", []string{"--security-opt", "no-new-privileges"}},
		{"all of it", []string{"--read-only", "--user", "1000:1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "50", "--memory", "512m"}},
		{"the host's PID namespace", []string{"--pid", "host"}},
		{"an init", []string{"--init"}},
	} {
		t.Run(test.description, func(t *testing.T) {
			id := d.start(t, append(test.options, share(3000, 20)...))
			requireSees(t, d.exec(t, id, workload("meminfo")), 3000)
			v := d.exec(t, id, workload("alloc"))
			require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"])
			// No user inside can change the limits, not even root.
			_, err := d.Docker(context.Background(), "exec", id, "/bin/sh", "-c", "echo 0 >/.gpuslice/limits")
			require.Error(t, err)
			d.remove(t, id)
			requireNothingLeft(t, d.m)
		})
	}
}
