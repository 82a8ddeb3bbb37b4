package cli

import (
	"flag"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/clidoc"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// completions are the completions of the last word of a call.
func completions(t *testing.T, args ...string) []string {
	var out, ignored strings.Builder
	require.Equal(t, exitDone, execute(t.Context(), append([]string{"__complete"}, args...), &out, &ignored))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Equal(t, ":4", lines[len(lines)-1], "no files: %v", lines)
	return lines[:len(lines)-1]
}

func TestCompletions(t *testing.T) {
	s := terminalNode(t)
	for _, test := range []struct {
		args string
		want []string
	}{
		{"describe container --state-dir DIR ", []string{"default/infer/main\tactive", "default/train/main\tactive"}},
		{"describe container --state-dir DIR default/t", []string{"default/train/main\tactive"}},
		{"describe container --state-dir DIR c-t", []string{"c-train\tactive"}},
		{"describe container --state-dir DIR c-train ", []string{}},
		{"describe gpu --state-dir DIR ", []string{"0\tNVIDIA H200", nodetest.H200 + "\tNVIDIA H200", "1\tTesla T4", nodetest.T4 + "\tTesla T4"}},
		{"describe gpu --state-dir DIR GPU-00000002", []string{nodetest.T4 + "\tTesla T4"}},
		{"describe gpu --state-dir /no/such/directory ", []string{}},
		{"describe container --state-dir /no/such/directory ", []string{}},
		{"cordon --state-dir DIR 1", []string{"1\tTesla T4"}},
		{"uncordon --state-dir DIR GPU-00000001", []string{nodetest.H200 + "\tNVIDIA H200"}},
		{"resize --state-dir DIR ", []string{"default/infer:main\tactive", "default/train:main\tactive"}},
		{"top --sort ", sortKeys},
		{"status -o ", []string{"table", "wide", "json", "yaml", "jsonpath", "go-template", "name"}},
		{"status --color=", []string{"auto", "always", "never"}},
		{"completion ", []string{"bash", "zsh", "fish"}},
		{"status ", []string{}},
	} {
		got := completions(t, strings.Split(strings.ReplaceAll(test.args, "DIR", s.Dir), " ")...)
		assert.Equal(t, test.want, got, test.args)
	}
	t.Setenv("GPUSLICE_STATE_DIR", s.Dir)
	assert.Equal(t, []string{"c-infer\tactive"}, completions(t, "describe", "container", "c-i"), "the variable is read")
	assert.Contains(t, completions(t, "to"), "top\tShow what containers use of their shares, live")
}

func TestCompletionBadCalls(t *testing.T) {
	for args, want := range map[string]string{
		"completion":      "an argument is missing: use gpuslice completion bash|zsh|fish",
		"completion tcsh": `unknown shell "tcsh": use bash, zsh or fish`,
	} {
		status, out, stderr := gpuslice(strings.Fields(args)...)
		assert.Equal(t, exitUsage, status)
		assert.Empty(t, out)
		assert.Contains(t, stderr, want)
	}
	var stderr strings.Builder
	assert.Equal(t, exitFailed, execute(t.Context(), []string{"completion", "zsh"}, closedOutput{}, &stderr))
}

const reference = "../../../docs/configuration/cli.md"

const referenceHead = `# The commands of gpuslice

Environment variables can set four options: ` + "`GPUSLICE_STATE_DIR`, `GPUSLICE_SYSTEM_NAMESPACE`, `GPUSLICE_OUTPUT`" + ` and
` + "`GPUSLICE_COLOR`" + `. [CLI.md](../CLI.md) describes the output and the exit status of the commands.
`

// The reference is that of the commands: `make generate` writes it.
func TestReference(t *testing.T) {
	page := clidoc.Reference(command(), referenceHead, nil)
	golden.Check(t, reference, page)
}

const pluginReference = "../../../docs/configuration/plugin.md"

const pluginReferenceHead = `# The commands of kubectl gpuslice

Environment variables can set three options: ` + "`GPUSLICE_SYSTEM_NAMESPACE`, `GPUSLICE_OUTPUT` and `GPUSLICE_COLOR`" + `.
[CLI-CLUSTER.md](../CLI-CLUSTER.md) describes the commands.
`

func TestPluginReference(t *testing.T) {
	golden.Check(t, pluginReference, clidoc.Reference(Plugin(), pluginReferenceHead, nil))
}

// No help of kubectl-gpuslice is about a node's files, and each line fits.
func TestPluginHelp(t *testing.T) {
	asPlugin(t)
	var visit func(c *cobra.Command, path []string)
	visit = func(c *cobra.Command, path []string) {
		status, out, stderr := gpuslice(append(path, "--help")...)
		assert.Equal(t, exitDone, status, stderr)
		for _, text := range []string{"this node", "state-dir", "all-nodes", "[NODE]", "docker"} {
			assert.NotContains(t, out, text, path)
		}
		for line := range strings.Lines(out) {
			if !strings.Contains(line, "ln -s") {
				assert.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 80, line)
			}
		}
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				visit(sub, append(path[:len(path):len(path)], sub.Name()))
			}
		}
	}
	visit(Plugin(), nil)
	status, out, _ := gpuslice("version")
	assert.Equal(t, exitDone, status)
	assert.Contains(t, out, "gpuslice version ")
	status, _, stderr := gpuslice("status", "-o", "go-template={{.name}}")
	assert.Equal(t, exitUsage, status)
	assert.Contains(t, stderr, "use table, wide, json, yaml, jsonpath or name")
}

var manDir = flag.String("man", "", "write man pages to this directory")

func TestManPages(t *testing.T) {
	clidoc.Man(t, Node(), *manDir)
	clidoc.Man(t, Plugin(), *manDir)
}
