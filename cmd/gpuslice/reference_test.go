package main

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/clidoc"
)

var writeReference = flag.Bool("update-reference", false, "write the reference of the commands")

const reference = "../../docs/configuration/cli.md"

const referenceHead = `# The commands of gpuslice

Each option can also be set by an environment variable: ` + "`GPUSLICE_STATE_DIR`" + ` is ` + "`--state-dir`" + `. [CLI.md](../CLI.md)
describes the output and the exit status of the commands.
`

// The reference is that of the commands: `make generate` writes it.
func TestReference(t *testing.T) {
	page := clidoc.Reference(command(), referenceHead, nil)
	if *writeReference {
		require.NoError(t, os.WriteFile(reference, []byte(page), 0o644))
	}
	kept, err := os.ReadFile(reference)
	require.NoError(t, err)
	assert.True(t, page == string(kept), "%s is not of the commands as they are; if that is meant: make generate", reference)
}

var manDir = flag.String("man", "", "write man pages to this directory")

func TestManPages(t *testing.T) { clidoc.Man(t, command(), *manDir) }
