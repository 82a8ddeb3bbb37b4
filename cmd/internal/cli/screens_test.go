package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

const cliPage = "../../../docs/CLI.md"

// screenBlock is a screen in the page: its name, its command if it has one, what it prints.
var screenBlock = regexp.MustCompile("(?s)<!-- screen: ([a-z-]+) -->\n(```sh\n[^\n]*\n```\n\n)?```\n(.*?)```\n")

// screen is a command and what it prints.
type screen struct{ command, prints string }

// The screens of docs/CLI.md are what the program prints.
func TestScreens(t *testing.T) {
	screens := screens(t)
	data, err := os.ReadFile(cliPage)
	require.NoError(t, err)
	shown := map[string]bool{}
	made := screenBlock.ReplaceAllStringFunc(string(data), func(block string) string {
		name := screenBlock.FindStringSubmatch(block)[1]
		screen, known := screens[name]
		require.True(t, known, "%s has a screen %q that the test doesn't make", cliPage, name)
		shown[name] = true
		text := "<!-- screen: " + name + " -->\n"
		if screen.command != "" {
			text += "```sh\n" + screen.command + "\n```\n\n"
		}
		return text + "```\n" + strings.TrimRight(screen.prints, "\n") + "\n```\n"
	})
	assert.Len(t, shown, len(screens), "each screen is in %s", cliPage)
	golden.Check(t, cliPage, made)
}

// screens are those of the page, by name.
func screens(t *testing.T) map[string]screen {
	s := screenNode(t)
	before := readingOf(t, s, nodetest.Time)
	s.Compute("3f2a9c51d0e4", 0, 10*time.Second+282*time.Millisecond, time.Second+400*time.Millisecond, 1500)
	s.Compute("8d01b7e6aa92", 0, time.Second+120*time.Millisecond, 0, 62)
	m := &topModel{interval: time.Second, by: "memory"}
	m.take(before)
	m.take(readingOf(t, s, nodetest.Time.Add(time.Second)))
	live := strings.Join(m.page(term.Style{}, 110, 12), "\n")
	m.press("h", 5)
	help := strings.Join(m.page(term.Style{}, 110, 40), "\n")

	prints := func(s *nodetest.StateDir, args ...string) screen {
		return screen{"gpuslice " + strings.Join(args, " "), without(s, shows(t, append(args, "--state-dir", s.Dir)...))}
	}
	var matrix strings.Builder // with the processors of a machine that isn't this one
	sysfs := fstest.MapFS{"devices/system/node/node0/cpulist": {Data: []byte("0-27")}, "devices/system/node/node1/cpulist": {Data: []byte("28-55")}}
	require.NoError(t, writeMatrix(page{Writer: &matrix}, matrixOf(hardwareOf(nodeOf(t, 4, "topo-4-bridges.txt")), sysfs)))
	root, doctorArgs := sickRoot(t)
	_, fixed, _ := gpuslice(append(doctorArgs, "--fix")...)
	fixed, _, _ = strings.Cut(strings.ReplaceAll(fixed, root, ""), "\nfail ")
	return map[string]screen{
		"status":             prints(s, "status"),
		"top":                {"gpuslice top", live},
		"top-help":           {"", help},
		"top-once":           prints(s, "top", "--once", "--interval=100ms", "--sort=pod"),
		"topology":           prints(pcieNode(t), "topology"),
		"topology-nvlink":    prints(nodetest.NewStateDirOf(t, nodeOf(t, 8, "topo-8-nvswitch.txt")), "topology"),
		"topology-matrix":    {"gpuslice topology --matrix", matrix.String()},
		"describe-gpu":       prints(s, "describe", "gpu", "0"),
		"describe-container": prints(s, "describe", "container", "default/train"),
		"doctor-fix":         {"gpuslice doctor --fix", fixed + "\n…"},
	}
}

// screenNode is a node as one may have it.
func screenNode(t *testing.T) *nodetest.StateDir {
	s := nodetest.NewStateDir(t)
	s.Claim("3f2a9c51d0e4", "train", grant.Share{UUID: nodetest.H200, MemoryMiB: 40960, CorePercent: 30})
	s.Claim("8d01b7e6aa92", "infer-7c9d8f6b5-x2x4q", grant.Share{UUID: nodetest.T4, MemoryMiB: 4000, CorePercent: 50})
	s.Claim("c17e6d2b90fa", "notebook-0", grant.Share{UUID: nodetest.H200, MemoryMiB: 20480})
	s.Claim("e5540c8a1b3d", "old", grant.Share{UUID: nodetest.H200, MemoryMiB: 10000, CorePercent: 10})
	require.NoError(t, s.Ledger.Release(t.Context(), "e5540c8a1b3d"))
	s.Use("3f2a9c51d0e4", 0, 30000<<20)
	s.Use("3f2a9c51d0e4", 1, 520<<20)
	s.Use("8d01b7e6aa92", 0, 3900<<20)
	s.Use("c17e6d2b90fa", 0, 2048<<20)
	s.Compute("3f2a9c51d0e4", 0, 10*time.Second, time.Second, 1000)
	s.Compute("8d01b7e6aa92", 0, time.Second, 0, 50)
	return s
}
