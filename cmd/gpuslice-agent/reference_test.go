package main

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
)

const reference = "../../docs/configuration/agent.md"

const referenceHead = `# The agent's options

Each can be given on the command line (` + "`--state-dir DIR`" + `), as a variable (` + "`GPUSLICE_STATE_DIR=DIR`" + `), or by its name in the YAML file that ` + "`--config`" + `
names (` + "`state-dir: DIR`" + `). The first of these that has it wins; a bad value anywhere stops the agent at its start. The file's schema is
` + "`install/agent.schema.json`" + `.
`

// The reference is that of the options: `make generate` writes it.
func TestReference(t *testing.T) {
	page := config.Reference(command(io.Discard, nil), referenceHead, aliases)
	if *update {
		require.NoError(t, os.WriteFile(reference, []byte(page), 0o644))
	}
	kept, err := os.ReadFile(reference)
	require.NoError(t, err)
	assert.True(t, page == string(kept), "%s is not of the options as they are; if that is meant: make generate", reference)
}
