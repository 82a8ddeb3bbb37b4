//go:build root

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// Without the rights, the error names root, and nothing is changed.
func TestStatusOfAUser(t *testing.T) {
	dir, err := os.MkdirTemp("", "gs") // t.TempDir's parent has mode 0700
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o711))
	open, closed := filepath.Join(dir, "open"), filepath.Join(dir, "closed")
	for _, path := range []string{open, closed} {
		ledger, err := ledger.Open(path)
		require.NoError(t, err)
		require.NoError(t, ledger.Close())
	}
	require.NoError(t, os.Chmod(closed, 0o700))
	for _, path := range []string{open, closed} {
		asUser(t, func() {
			status, out, stderr := gpuslice("status", "--state-dir", path)
			assert.Equal(t, exitFailed, status)
			assert.Empty(t, out)
			assert.Contains(t, stderr, "permission denied: run it as root")
		})
	}
}

// asUser calls fn with the file rights of a user without root.
func asUser(t *testing.T, fn func()) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		if err := syscall.Setfsuid(65534); err != nil {
			done <- err
			return
		}
		fn()
		done <- nil
	}()
	require.NoError(t, <-done)
}

// In each shell, in a real terminal, the Tab key completes a command, a container's name
// and a GPU's UUID of this node.
func TestCompletionInShells(t *testing.T) {
	s := terminalNode(t)
	exe, err := os.Executable()
	require.NoError(t, err)
	for _, shell := range shells {
		t.Run(shell, func(t *testing.T) {
			home := t.TempDir()
			script := filepath.Join(home, "gpuslice."+shell)
			require.NoError(t, os.WriteFile(script, []byte(shows(t, "completion", shell)), 0o600))
			require.NoError(t, os.Symlink(exe, filepath.Join(home, "gpuslice")))
			start := map[string]string{
				"bash": "PS1='ready> '\nsource /usr/share/bash-completion/bash_completion\nsource " + script + "\n",
				"zsh":  "PS1='ready> '\nautoload -Uz compinit && compinit -u -d " + home + "/dump\nsource " + script + "\n",
				"fish": "function fish_prompt; echo 'ready> '; end\nset fish_greeting\nsource " + script + "\n",
			}[shell]
			rc := filepath.Join(home, ".zshrc") // zsh's name of it
			require.NoError(t, os.WriteFile(rc, []byte(start), 0o600))
			run := map[string]string{
				"bash": "exec bash --noprofile --rcfile " + rc + " -i",
				"zsh":  "ZDOTDIR=" + home + " exec zsh -d -i",
				"fish": "exec fish --no-config --init-command 'source " + rc + "' -i",
			}[shell]
			_, err := exec.LookPath(shell)
			require.NoError(t, err, "it comes by test/setup.sh")
			x := newTerminal(t, 150, 20, fmt.Sprintf("export HOME=%s PATH=%s:$PATH %s=main GPUSLICE_STATE_DIR=%s\n%s\n", home, home, runAs, s.Dir, run))
			x.shows("ready>")
			x.press("gpuslice desc", "Tab")
			x.shows("gpuslice describe")
			x.press("con", "Tab")
			x.shows("gpuslice describe container")
			x.press("default/tr", "Tab")
			x.shows("gpuslice describe container default/train/main")
			x.press("C-u")
			x.press("gpuslice describe gpu GPU-00000002", "Tab")
			x.shows("gpuslice describe gpu " + nodetest.T4)
		})
	}
}

// Without root, the message names the remedy.
func TestNotRoot(t *testing.T) {
	s := busyNode(t)
	require.NoError(t, os.Chmod(s.Dir, 0o700))
	for _, args := range []string{"status", "resize x --cores 1", "cordon 0", "describe gpu 0"} {
		cmd := exec.Command("/proc/self/exe", append(strings.Fields(args), "--state-dir", s.Dir)...)
		cmd.Env = append(os.Environ(), runAs+"=main")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		require.Error(t, err, args)
		require.Equal(t, 1, strings.Count(string(out), "run it as root"), string(out))
	}
}
