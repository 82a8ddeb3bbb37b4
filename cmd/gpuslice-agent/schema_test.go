package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/clidoc"
	"github.com/gpuslice/gpuslice/test/golden"
)

const (
	schemaFile  = "../../install/agent.schema.json"
	exampleFile = "../../install/agent.example.yaml"
)

// limits are the schema's ranges of values.
var limits = map[string]map[string]any{
	"node-config-file":           {"pattern": "^(/.*)?$"},
	"inventory-interval":         {"pattern": `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`},
	"audit-interval":             {"pattern": `^(0|([0-9.]+(ns|us|µs|ms|s|m|h))+)$`},
	"violation-grace":            {"pattern": `^(0|([0-9.]+(ns|us|µs|ms|s|m|h))+)$`},
	"on-violation":               {"enum": []string{"report", "kill"}},
	"limiter-mode":               {"enum": []string{"preload", "library", "auto"}},
	"memory-enforcement":         {"enum": []string{"limiter", "native", "native+limiter", "auto"}},
	"device-injection":           {"enum": []string{"auto", "cdi", "envvar"}},
	"resource-api":               {"enum": []string{"device-plugin", "dra"}},
	"allocation-policy":          {"enum": []string{"packed", "spread"}},
	"resource-profile":           {"enum": []string{"hami", "tencent"}},
	"mig-strategy":               {"enum": []string{"none", "single", "mixed"}},
	"kubernetes-api":             {"enum": []string{"auto", "on", "off"}},
	"register-format":            {"enum": []string{"json", "csv"}},
	"unscheduled-policy":         {"enum": []string{"deny", "share"}},
	"core-policy":                {"enum": []string{"default", "force", "disable"}},
	"log-level":                  {"enum": []string{"debug", "info", "warn", "error"}},
	"log-format":                 {"enum": []string{"text", "json"}},
	"device-split-count":         {"minimum": 1, "maximum": 1000},
	"device-memory-scaling":      {"minimum": 0.01, "maximum": 100.0},
	"device-cores-scaling":       {"minimum": 0.01, "maximum": 100.0},
	"context-memory-mib":         {"minimum": -1, "maximum": 16384},
	"unlimited-core-floor":       {"minimum": 1, "maximum": 100},
	"legacy-metrics":             {"examples": [][]string{{"hami", "gpu-manager"}}},
	"disable-control-namespaces": {"examples": [][]string{{"lab"}, {"*"}}},
}

// The schema that is shipped is that of the options: `make generate` writes it.
func TestSchema(t *testing.T) {
	var o options
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.bind(flags)
	// A default that is the machine's own is none.
	require.NoError(t, flags.Lookup("node-name").Value.Set(""))
	flags.Lookup("node-name").DefValue = ""
	schema := clidoc.Schema(flags, "gpuslice-agent's file of options (--config), in YAML", limits)
	data, err := json.MarshalIndent(schema, "", "  ")
	require.NoError(t, err)
	golden.Check(t, schemaFile, string(data)+"\n")
	for name := range limits {
		assert.NotNil(t, flags.Lookup(name), "--%s is no option", name)
	}
}

// The schema and the agent accept the same values.
func TestSchemaSaysWhatIsTaken(t *testing.T) {
	taken := func(flag string, value any) bool {
		_, started, _, _, _ := agent("--node-name=n", fmt.Sprintf("--%s=%v", flag, value))
		return started
	}
	for name, limit := range limits {
		if words, ok := limit["enum"].([]string); ok {
			for _, word := range words {
				assert.True(t, taken(name, word), "--%s=%s", name, word)
			}
			assert.False(t, taken(name, "another"), name)
		}
		if limit["minimum"] != nil {
			assert.True(t, taken(name, limit["minimum"]), name)
			assert.True(t, taken(name, limit["maximum"]), name)
			for _, beyond := range beyond(limit["minimum"], limit["maximum"]) {
				assert.False(t, taken(name, beyond), "--%s=%v", name, beyond)
			}
		}
	}
}

func beyond(low, high any) []any {
	if n, ok := low.(int); ok {
		return []any{n - 1, high.(int) + 1}
	}
	return []any{low.(float64) / 2, high.(float64) + 1}
}

func TestExample(t *testing.T) {
	o, started, _, _, stderr := agent("--config="+exampleFile, "--node-name=n")
	require.True(t, started, stderr)
	assert.Equal(t, 10, o.SplitCount)
}

const reference = "../../docs/configuration/agent.md"

const referenceHead = `# The agent's options

Set an option on the command line (` + "`--state-dir DIR`" + `), by an environment variable (` + "`GPUSLICE_STATE_DIR=DIR`" + `), or by its
name in the YAML file of ` + "`--config`" + ` (` + "`state-dir: DIR`" + `). The first of these that sets the option is used. The agent does
not start with an invalid value in any of them. The file's schema is ` + "`install/agent.schema.json`" + `.
`

// The reference is that of the options: `make generate` writes it.
func TestReference(t *testing.T) {
	page := clidoc.Reference(command(io.Discard, nil, nil), referenceHead, aliases)
	golden.Check(t, reference, page)
}

var manDir = flag.String("man", "", "write man pages to this directory")

func TestManPages(t *testing.T) { clidoc.Man(t, command(io.Discard, nil, nil), *manDir) }
