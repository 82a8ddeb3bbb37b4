package main

import (
	"flag"
	"io"
	"testing"

	"github.com/gpuslice/gpuslice/test/clidoc"
	"github.com/gpuslice/gpuslice/test/golden"
)

const reference = "../../docs/configuration/agent.md"

const referenceHead = `# The agent's options

Set an option on the command line (` + "`--state-dir DIR`" + `), by an environment variable (` + "`GPUSLICE_STATE_DIR=DIR`" + `), or by its
name in the YAML file of ` + "`--config`" + ` (` + "`state-dir: DIR`" + `). The first of these that sets the option is used. The agent does
not start with an invalid value in any of them. The file's schema is ` + "`install/agent.schema.json`" + `.
`

// The reference is that of the options: `make generate` writes it.
func TestReference(t *testing.T) {
	page := clidoc.Reference(command(io.Discard, nil), referenceHead, aliases)
	golden.Check(t, reference, page)
}

var manDir = flag.String("man", "", "write man pages to this directory")

func TestManPages(t *testing.T) { clidoc.Man(t, command(io.Discard, nil), *manDir) }
