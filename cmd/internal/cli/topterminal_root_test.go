//go:build root

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/nodetest"
)

func (x *terminal) showsOrder(want string) {
	x.t.Helper()
	x.until("the order "+want, func(screen string) bool { return order(screen) == want })
}

// selectedTrain is the row of the pod train, inverted; tmux may add the color.
var selectedTrain = regexp.MustCompile("\x1b\\[7m(\x1b\\[39m)?default/train")

// top in a real terminal: it draws, updates, sorts, filters, selects, follows the size, and restores the terminal.
func TestTopInATerminal(t *testing.T) {
	s := terminalNode(t)
	x := newTerminal(t, 110, 20, topScript(s.Dir, "main", "top --interval 100ms --state-dir "+s.Dir))
	screen := x.shows("top of node-1", "29.3G/39.1G", "1000M/4000M", "q quit")
	assert.NotContains(t, screen, "first line")
	assert.Equal(t, screenState, x.state())
	assert.Contains(t, x.tmux("capture-pane", "-p", "-e"), "\x1b[32m", "in colours")

	s.Use("c-infer", 0, 2000<<20)
	x.shows("2000M/4000M")
	hours := time.Duration(0)
	x.until("its compute time", func(screen string) bool {
		hours += time.Hour // in each reading there is more of it than there was time
		s.Compute("c-infer", 0, hours, 0, 0)
		return strings.Contains(screen, "100/50%")
	})

	x.showsOrder("train infer")
	x.press("r")
	x.showsOrder("infer train")
	x.press("r", "s", "s", "s")
	x.shows("by pod")
	x.showsOrder("infer train")

	x.press("/", "t", "r", "a", "i")
	x.shows("filter: trai_")
	x.showsOrder("train")
	x.press("Enter")
	x.shows("filter: trai  (1 rows")
	x.press("Escape")
	x.showsOrder("infer train")

	x.press("Down", "Down")
	x.until("a row selected", func(string) bool {
		return selectedTrain.MatchString(x.tmux("capture-pane", "-p", "-e"))
	})

	x.tmux("resize-window", "-x", "70", "-y", "12")
	screen = x.until("a narrower page", func(screen string) bool {
		return !strings.Contains(screen, "PROC") && strings.Contains(screen, "WAITED")
	})
	assert.Len(t, strings.Split(strings.TrimSuffix(screen, "\n"), "\n"), 12)
	x.tmux("resize-window", "-x", "140", "-y", "30")
	x.shows("PROC", "q quit")

	x.press("h")
	x.shows("The keys of gpuslice top")
	x.press("x")
	x.showsOrder("infer train")
	x.press("q")
	screen = x.shows("ended with 0, settings kept")
	assert.Contains(t, screen, "first line", "the shell's page is back")
	assert.NotContains(t, screen, "top of node-1")
	assert.Equal(t, shellState, x.state())
}

// The terminal is restored on every exit.
func TestTopRestoresTheTerminal(t *testing.T) {
	exits := map[string]struct {
		mode, want string
		end        func(x *terminal, pid string)
	}{
		"Ctrl-C":  {"main", "ended with 0", func(x *terminal, _ string) { x.press("C-c") }},
		"SIGTERM": {"main", "ended with 0", kill("TERM")},
		"SIGINT":  {"main", "ended with 0", kill("INT")},
		"SIGHUP":  {"main", "ended with 0", kill("HUP")},
		"SIGQUIT": {"main", "ended with 0", kill("QUIT")},
		"a panic": {"panic", "ended with 1", func(*terminal, string) {}},
	}
	for name, exit := range exits {
		t.Run(name, func(t *testing.T) {
			s := terminalNode(t)
			command := "top --interval 100ms --state-dir " + s.Dir
			if exit.mode == "panic" {
				command = s.Dir
			}
			// A shell in between prints its PID before exec.
			script := topScript(s.Dir, exit.mode, command)
			exe, err := os.Executable()
			require.NoError(t, err)
			script = strings.Replace(script, exe+" ", "bash -c 'echo $$ >pid; exec \"$@\"' bash "+exe+" ", 1)
			x := newTerminal(t, 90, 20, script)
			if exit.mode == "main" {
				x.shows("top of node-1", "29.3G/39.1G")
				assert.Equal(t, screenState, x.state())
			}
			pid, err := os.ReadFile(filepath.Join(filepath.Dir(s.Dir), "pid"))
			if exit.mode == "main" {
				require.NoError(t, err)
			}
			exit.end(x, strings.TrimSpace(string(pid)))
			x.shows(exit.want + ", settings kept")
			assert.Equal(t, shellState, x.state())
			errors, err := os.ReadFile(filepath.Join(filepath.Dir(s.Dir), "errors"))
			require.NoError(t, err)
			if exit.mode == "panic" {
				assert.Contains(t, string(errors), "program experienced a panic")
			} else {
				assert.Empty(t, string(errors))
			}
		})
	}
}

func kill(signal string) func(*terminal, string) {
	return func(x *terminal, pid string) {
		out, err := exec.Command("kill", "-s", signal, pid).CombinedOutput()
		require.NoError(x.t, err, "%s", out)
	}
}

// Ctrl-Z returns the terminal to the shell; fg continues top.
func TestTopSuspends(t *testing.T) {
	s := terminalNode(t)
	script := strings.Replace(topScript(s.Dir, "main", "top --interval 100ms --state-dir "+s.Dir), "status=$?",
		"status=$?\nif [ \"$(stty -g)\" = \"$before\" ]; then echo suspended; fi\nread -r line\nfg >/dev/null\nstatus=$?", 1)
	x := newTerminal(t, 90, 20, "set -m\n"+script)
	x.shows("top of node-1", "29.3G/39.1G")
	x.press("C-z")
	x.shows("first line", "suspended")
	assert.Equal(t, shellState, x.state())
	x.press("Enter")
	x.shows("top of node-1", "29.3G/39.1G")
	assert.Equal(t, screenState, x.state())
	s.Use("c-infer", 0, 1234<<20)
	x.shows("1234M/4000M")
	x.press("q")
	x.shows("ended with 0, settings kept")
}

// Without a full-screen terminal top prints once.
func TestTopInADumbTerminal(t *testing.T) {
	s := terminalNode(t)
	x := newTerminal(t, 110, 20, "export TERM=dumb\n"+topScript(s.Dir, "main", "top --interval 100ms --state-dir "+s.Dir))
	screen := x.shows("ended with 0")
	assert.Contains(t, screen, "first line")
	assert.Contains(t, screen, "1000M/4000M")
	assert.NotContains(t, x.tmux("capture-pane", "-p", "-e"), "\x1b[")
}

// Tables fit the terminal, with colors unless NO_COLOR is set.
func TestStatusInATerminal(t *testing.T) {
	s := terminalNode(t)
	run := "status --state-dir " + s.Dir
	x := newTerminal(t, 76, 20, topScript(s.Dir, "main", run))
	screen := x.shows("ended with 0")
	assert.Contains(t, screen, "…")
	assert.NotContains(t, screen, nodetest.H200)
	assert.Contains(t, x.tmux("capture-pane", "-p", "-e"), "\x1b[32mactive")
	x = newTerminal(t, 160, 20, topScript(s.Dir, "main", run))
	assert.Contains(t, x.shows("ended with 0"), nodetest.H200)
	x = newTerminal(t, 160, 20, "export NO_COLOR=1\n"+topScript(s.Dir, "main", run))
	x.shows("ended with 0")
	assert.NotContains(t, x.tmux("capture-pane", "-p", "-e"), "\x1b[")
	x = newTerminal(t, 160, 20, topScript(s.Dir, "main", run+" --color=never"))
	x.shows("ended with 0")
	assert.NotContains(t, x.tmux("capture-pane", "-p", "-e"), "\x1b[")
}
