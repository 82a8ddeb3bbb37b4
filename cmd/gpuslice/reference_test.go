package main

import (
	"flag"
	"testing"

	"github.com/gpuslice/gpuslice/test/clidoc"
	"github.com/gpuslice/gpuslice/test/golden"
)

const reference = "../../docs/configuration/cli.md"

const referenceHead = `# The commands of gpuslice

Each option can also be set by an environment variable: ` + "`GPUSLICE_STATE_DIR`" + ` is ` + "`--state-dir`" + `. [CLI.md](../CLI.md)
describes the output and the exit status of the commands.
`

// The reference is that of the commands: `make generate` writes it.
func TestReference(t *testing.T) {
	page := clidoc.Reference(command(), referenceHead, nil)
	golden.Check(t, reference, page)
}

var manDir = flag.String("man", "", "write man pages to this directory")

func TestManPages(t *testing.T) { clidoc.Man(t, command(), *manDir) }
