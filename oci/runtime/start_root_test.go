//go:build root

package ociruntime

import (
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// mostInit is what a package may allocate before main, in bytes: more is a table or a pattern that each start of the program, several
// for each container, makes again.
const mostInit = 64 << 10

func TestStartsWithLittle(t *testing.T) {
	program, err := harness.Artefact("bin", "gpuslice-runtime")
	require.NoError(t, err)
	cmd := exec.Command(program, "hook") // it fails: there is no such hook
	cmd.Env = []string{"GODEBUG=inittrace=1"}
	out, _ := cmd.CombinedOutput()
	packages := regexp.MustCompile(`(?m)^init (\S+) @.* ([0-9]+) bytes, [0-9]+ allocs$`).FindAllSubmatch(out, -1)
	require.Greater(t, len(packages), 10, "%s", out)
	for _, p := range packages {
		bytes, err := strconv.Atoi(string(p[2]))
		require.NoError(t, err)
		assert.LessOrEqual(t, bytes, mostInit, "%s", p[1])
	}
}
