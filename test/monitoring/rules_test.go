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

	"github.com/gpuslice/gpuslice/test/golden"
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

// Only the alerts for the sample's problems fire: a GPU that is not healthy, pending pods, an audit that has not started, and the
// schedulers' nodes, which are others than the agent's.
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
	assert.ElementsMatch(t, []string{"GPUSliceNodeWithoutAgent", "GPUSliceGPUUnhealthy", "GPUSliceAuditStalled", "GPUSliceMemoryFragmented", "GPUSlicePodsPending"}, firing)
}

// shipped returns a file of install/monitoring.
func shipped(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../install/monitoring", name))
	require.NoError(t, err)
	return data
}

var severities = []string{"critical", "warning", "info"}

const runbooks = "../../docs/RUNBOOKS.md"

// Each alert has a summary, a description, a runbook with a URL, and a test.
func TestRunbooks(t *testing.T) {
	s := newServer(t)
	tests, err := os.ReadFile("rules_test.yaml")
	require.NoError(t, err)
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "MONITORING.md"))
	require.NoError(t, err)
	page, err := os.ReadFile(runbooks)
	require.NoError(t, err)
	alerts := 0
	for _, r := range s.rules {
		if r.Alert == "" {
			continue
		}
		alerts++
		assert.Regexp(t, "^GPUSlice[A-Z]", r.Alert)
		assert.Contains(t, severities, r.Labels["severity"], r.Alert)
		for _, name := range []string{"summary", "description", "runbook", "runbook_url"} {
			assert.NotEmpty(t, r.Annotations[name], "%s: %s", r.Alert, name)
		}
		assert.Equal(t, "https://github.com/gpuslice/gpuslice/blob/main/docs/RUNBOOKS.md#"+strings.ToLower(r.Alert), r.Annotations["runbook_url"])
		assert.Contains(t, string(page), "\n## "+r.Alert+"\n", "the section of the URL")
		assert.Greater(t, len(strings.Fields(r.Annotations["runbook"])), 25, "%s: what has to be done?", r.Alert)
		assert.Contains(t, string(tests), `ALERTS{alertname="`+r.Alert+`"`, "an alert without a test")
		assert.Contains(t, string(docs), "`"+r.Alert+"`", "an alert that docs/MONITORING.md does not list")
	}
	assert.Equal(t, len(regexp.MustCompile(`(?m)^  - alert:`).FindAll(shipped(t, "rules.yaml"), -1)), alerts)
}

// The page of the runbooks is made of the rules: `make generate` writes it.
func TestRunbooksPage(t *testing.T) {
	s := newServer(t)
	var text strings.Builder
	text.WriteString("<!-- Generated from install/monitoring/rules.yaml by `make generate`. -->\n# Runbooks\n\n" +
		"What each alert of `install/monitoring/rules.yaml` means, and what to do. [MONITORING.md](MONITORING.md#alerts) lists\nthem.\n")
	for _, r := range s.rules {
		if r.Alert != "" {
			text.WriteString("\n## " + r.Alert + "\n\n" + markdown(r.Annotations["runbook"]))
		}
	}
	golden.Check(t, runbooks, text.String())
}

// item is the beginning of an item of a list, or of a paragraph that names a kind.
var item = regexp.MustCompile(`^([0-9]+\. |[a-z][a-z, -]*: |[A-Z][a-z]+: )`)

// markdown is a runbook in lines of 120 columns. Its lines are continued until an item begins.
func markdown(runbook string) string {
	var paragraphs []string
	for line := range strings.Lines(runbook) {
		line = strings.NewReplacer("<", `\<`, "*", `\*`, "_", `\_`).Replace(strings.TrimSpace(line))
		if len(paragraphs) == 0 || item.MatchString(line) {
			paragraphs = append(paragraphs, line)
		} else {
			paragraphs[len(paragraphs)-1] += " " + line
		}
	}
	var text strings.Builder
	numbered := regexp.MustCompile(`^[0-9]+\. `)
	for i, paragraph := range paragraphs {
		indent := ""
		if numbered.MatchString(paragraph) {
			indent = "   "
		}
		if i > 0 && (indent == "" || !numbered.MatchString(paragraphs[i-1])) {
			text.WriteString("\n")
		}
		width := 0
		for j, word := range strings.Fields(paragraph) {
			switch {
			case j == 0:
			case width+1+len(word) > 120:
				text.WriteString("\n" + indent)
				width = len(indent)
			default:
				text.WriteString(" ")
				width++
			}
			text.WriteString(word)
			width += len(word)
		}
		text.WriteString("\n")
	}
	return text.String()
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
