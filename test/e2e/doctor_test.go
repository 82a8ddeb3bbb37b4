//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// On a node of the chart the doctor reports no finding about a part that works. The agent runs in a pod, with
// its own network. The test ignores findings about the driver, because parts of it are missing on the
// machine.
func TestDoctor(t *testing.T) {
	out, stderr, _, err := cluster.OnNode(context.Background(), "gpuslice", "doctor", "-o", "json",
		"--runtime-socket", cluster.RuntimeSocket(), "--runtime-config", cluster.RuntimeConfig())
	require.NoError(t, err)
	var report struct {
		Checks []struct {
			Check, State, Found string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &report), "%s%s", out, stderr)
	states, found := map[string]string{}, map[string]string{}
	for _, c := range report.Checks {
		states[c.Check], found[c.Check] = c.State, c.Found
	}
	assert.Equal(t, "running in a pod and ready", found["agent"])
	for _, check := range []string{"runtime", "runtime-config", "nri", "kubelet", "library-dir", "agent"} {
		assert.Equal(t, "ok", states[check], "%s: %s", check, found[check])
	}
	assert.Contains(t, []string{"ok", "warn"}, states["state-dir"], found["state-dir"]) // it needn't be a tmpfs of its own
}
