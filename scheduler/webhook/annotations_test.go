package webhook

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTolerances: each form that NRI reads, and the users that may set it.
func TestTolerances(t *testing.T) {
	const key = "gpuslice.io/tolerate-missing-plugins"
	rules := DefaultRules()
	rules.ToleratedUsers = []string{"operator"}
	for _, form := range []string{key, key + "/pod", key + "/container.main"} {
		with := map[string]string{form: "true"}
		require.Contains(t, rules.checkTolerance("alice", "team-a", nil, with), form)
		require.Contains(t, rules.checkTolerance("alice", "team-a", map[string]string{form: "false"}, with), form)
		require.Empty(t, rules.checkTolerance("alice", "team-a", with, with))
		require.Empty(t, rules.checkTolerance("alice", "team-a", with, nil))
		require.Empty(t, rules.checkTolerance("alice", "kube-system", nil, with))
		require.Empty(t, rules.checkTolerance("operator", "team-a", nil, with))
	}
	require.Empty(t, rules.checkTolerance("alice", "team-a", nil, map[string]string{key + "x": "true", "x" + key: "true"}))
}
