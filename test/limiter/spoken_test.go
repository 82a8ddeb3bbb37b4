//go:build root

package limiter_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// spoken is a probe that goes on at each line that it is given, and what it prints.
type spoken struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func speak(t *testing.T, c *container, script string, in ...string) *spoken {
	t.Helper()
	args := slices.Concat(in, []string{filepath.Join(bin, "probe")}, strings.Fields(script))
	s := &spoken{cmd: c.command(args[0], args[1:]...)}
	s.start(t)
	return s
}

func (s *spoken) start(t *testing.T) {
	t.Helper()
	var err error
	s.in, err = s.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.lines = bufio.NewScanner(out)
	s.cmd.Stderr = os.Stderr
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() { s.cmd.Process.Kill(); s.cmd.Wait() })
}

func (s *spoken) says(t *testing.T, lines ...string) {
	t.Helper()
	for _, want := range lines {
		require.True(t, s.lines.Scan(), want)
		require.Equal(t, want, s.lines.Text())
	}
}

func (s *spoken) goOn(t *testing.T) {
	t.Helper()
	_, err := fmt.Fprintln(s.in)
	require.NoError(t, err)
}
