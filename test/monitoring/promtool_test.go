package monitoring

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// promtool runs Debian's, which test/setup.sh --monitoring installs.
func promtool(t *testing.T, arguments ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	require.NoError(t, err, "test/setup.sh --monitoring installs it")
	out, err := exec.CommandContext(t.Context(), path, arguments...).CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestPromtool(t *testing.T) {
	promtool(t, "check", "rules", "../../install/monitoring/rules.yaml")
	promtool(t, "test", "rules", "rules_test.yaml")
}
