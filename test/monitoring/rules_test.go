package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each rule uses exported metrics, and each label in an alert's text exists when it fires.
func TestRules(t *testing.T) {
	s := newServer(t)
	for _, r := range s.rules {
		assert.Empty(t, s.check(r.Expr), r.Record+r.Alert)
		if r.Alert == "" {
			continue
		}
		parsed, err := s.parser.ParseExpr(r.Expr)
		require.NoError(t, err)
		assert.Empty(t, s.lacks(parsed, mentioned(r.Annotations["summary"]+r.Annotations["description"])), r.Alert)
	}
}

// Only the alerts for the sample's problems fire: a GPU that is not healthy, pending pods, and an audit that has not started.
func TestAlertsOfTheSample(t *testing.T) {
	s := newServer(t)
	var firing []string
	for _, r := range s.rules {
		if r.Alert == "" {
			continue
		}
		found, err := s.at(r.Expr)
		require.NoError(t, err)
		if len(found) > 0 {
			firing = append(firing, r.Alert)
		}
	}
	assert.ElementsMatch(t, []string{"GPUSliceGPUUnhealthy", "GPUSliceAuditStalled", "GPUSliceMemoryFragmented", "GPUSlicePodsPending"}, firing)
}

// shipped returns a file of install/monitoring.
func shipped(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../install/monitoring", name))
	require.NoError(t, err)
	return data
}

var severities = []string{"critical", "warning", "info"}

// Each alert has a summary, a description, a runbook and a test.
func TestRunbooks(t *testing.T) {
	s := newServer(t)
	tests, err := os.ReadFile("rules_test.yaml")
	require.NoError(t, err)
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "MONITORING.md"))
	require.NoError(t, err)
	alerts := 0
	for _, r := range s.rules {
		if r.Alert == "" {
			continue
		}
		alerts++
		assert.Regexp(t, "^GPUSlice[A-Z]", r.Alert)
		assert.Contains(t, severities, r.Labels["severity"], r.Alert)
		for _, name := range []string{"summary", "description", "runbook"} {
			assert.NotEmpty(t, r.Annotations[name], "%s: %s", r.Alert, name)
		}
		assert.Greater(t, len(strings.Fields(r.Annotations["runbook"])), 25, "%s: what has to be done?", r.Alert)
		assert.Contains(t, string(tests), `ALERTS{alertname="`+r.Alert+`"`, "an alert without a test")
		assert.Contains(t, string(docs), "`"+r.Alert+"`", "an alert that docs/MONITORING.md does not list")
	}
	assert.Equal(t, len(regexp.MustCompile(`(?m)^  - alert:`).FindAll(shipped(t, "rules.yaml"), -1)), alerts)
}

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
