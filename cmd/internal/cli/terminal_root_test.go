//go:build root

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// terminal is a real one: tmux's, with a shell in it.
type terminal struct {
	t      *testing.T
	socket string
}

// newTerminal starts a shell that runs a script in a terminal of a size.
func newTerminal(t *testing.T, columns, rows int, script string) *terminal {
	t.Helper()
	dir := t.TempDir()
	term := &terminal{t: t, socket: filepath.Join(dir, "tmux")}
	file := filepath.Join(dir, "script")
	require.NoError(t, os.WriteFile(file, []byte(script), 0o600))
	cmd := exec.Command("tmux", "-u", "-f", "/dev/null", "-S", term.socket, "new-session", "-d",
		"-x", fmt.Sprint(columns), "-y", fmt.Sprint(rows), "exec bash --norc --noprofile "+file)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "TERM=xterm-256color", "NO_COLOR=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s (tmux comes by test/setup.sh)", out)
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", term.socket, "kill-server").Run() })
	return term
}

func (x *terminal) tmux(args ...string) string {
	x.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-u", "-S", x.socket}, args...)...).CombinedOutput()
	require.NoError(x.t, err, "tmux %v: %s", args, out)
	return string(out)
}

// screen is what is to be seen.
func (x *terminal) screen() string { return x.tmux("capture-pane", "-p") }

// press presses keys, by tmux's names.
func (x *terminal) press(keys ...string) { x.tmux(append([]string{"send-keys"}, keys...)...) }

// until waits until a screen is as it should be, and returns it.
func (x *terminal) until(what string, is func(screen string) bool) string {
	x.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		screen := x.screen()
		if is(screen) {
			return screen
		}
		if time.Now().After(deadline) {
			require.FailNow(x.t, "the terminal never showed "+what, "it shows:\n%s", screen)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// shows waits until texts are to be seen.
func (x *terminal) shows(texts ...string) string {
	x.t.Helper()
	return x.until(strings.Join(texts, ", "), func(screen string) bool {
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				return false
			}
		}
		return true
	})
}

// state is the terminal's own: whether it shows a cursor, another page than the shell's,
// and wraps lines.
func (x *terminal) state() string {
	return strings.TrimSpace(x.tmux("display-message", "-p", "cursor #{cursor_flag} page #{alternate_on} wrap #{wrap_flag}"))
}

// topScript runs top, and shows how it ended and that the terminal's settings are the same.
func topScript(dir, mode, command string) string {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`
export %s=%s
cd %s
before=$(stty -g)
echo first line
%s %s 2>errors
status=$?
if [ "$(stty -g)" = "$before" ]; then echo "ended with $status, settings kept"; else echo "ended with $status, SETTINGS CHANGED"; fi
read -r line
`, runAs, mode, filepath.Dir(dir), exe, command)
}
