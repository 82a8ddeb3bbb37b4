package verify

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/view"
)

// played is a probe that answers a command with lines; "stop" ends it, and without lines it does not answer. It returns what it was sent.
func played(t *testing.T, lines map[string]string) (p *probe, sent func() []string) {
	in, toProbe := io.Pipe()
	fromProbe, out := io.Pipe()
	var got []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer out.Close()
		for s := bufio.NewScanner(in); s.Scan(); {
			got = append(got, s.Text())
			name, _, _ := strings.Cut(s.Text(), " ")
			if lines[name] == "stop" {
				in.Close()
				return
			}
			fmt.Fprint(out, lines[name])
		}
	}()
	p = newProbe(fromProbe, toProbe, func() error { fromProbe.Close(); return toProbe.Close() })
	t.Cleanup(func() { _ = p.close() })
	return p, func() []string { _ = p.close(); <-done; return got }
}

const long = time.Minute

// The probe has the limits of the run.
func TestLimitsOfTheProbe(t *testing.T) {
	p, sent := played(t, map[string]string{"limits": "end=0\n"})
	require.NoError(t, p.limit(t.Context(), 150*time.Second, 10*time.Minute))
	require.Equal(t, []string{"limits 150 600"}, sent())
	p, sent = played(t, map[string]string{"limits": "end=0\n"})
	require.NoError(t, p.limit(t.Context(), 50*time.Hour, 200*time.Hour))
	require.Equal(t, []string{"limits 86400 86400"}, sent())
	p, _ = played(t, map[string]string{"limits": "end=2\n"})
	require.ErrorContains(t, p.limit(t.Context(), long, long), "limits: the probe's command ended with status 2")
}

// Slowness is no crash: only answers that did not come in time are late. A probe can't report it of itself.
func TestLate(t *testing.T) {
	p, _ := played(t, map[string]string{"view": "a=1\nlate=1\nend=0\n", "memory": "end=142\n", "inside": ""})
	a, err := p.ask(t.Context(), long, "view")
	require.NoError(t, err)
	require.False(t, a.late())
	require.Equal(t, "1", a["a"])
	a, err = p.ask(t.Context(), long, "memory")
	require.NoError(t, err)
	require.True(t, a.late())
	require.Equal(t, "no answer in time", a.problem())
	a, err = p.ask(t.Context(), 20*time.Millisecond, "inside")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, a.late())
	a, err = p.ask(t.Context(), long, "view")
	require.ErrorIs(t, err, errEnded, "its answer could be that of the last command")
	require.True(t, a.late())

	p, _ = played(t, map[string]string{"view": "stop"})
	for range 2 {
		a, err = p.ask(t.Context(), long, "view")
		require.ErrorIs(t, err, errEnded)
		require.False(t, a.late(), "a crash")
	}
	p, _ = played(t, map[string]string{"view": "stop"})
	p.ends = time.Now()
	a, err = p.ask(t.Context(), long, "view")
	require.ErrorIs(t, err, errEnded)
	require.True(t, a.late(), "its time was over")
}

// In a pod an agent runs, and has a step; on a host without one, the check is not needed.
func TestAgentThatIsLate(t *testing.T) {
	silent := func(context.Context) (view.Node, bool, error) { return view.Node{}, false, nil }
	for _, c := range []struct {
		way      Way
		agent    bool
		optional bool
	}{
		{Command{}, false, true}, {Command{}, true, false}, {Sockets{}, false, false},
	} {
		r := &run{Config: Config{Way: c.way, View: silent, Timeout: long, Progress: func(string) {}}, step: 3 * time.Second, agent: c.agent}
		require.NoError(t, r.checkAudit(t.Context()))
		require.Len(t, r.rows, 1)
		require.Equal(t, c.optional, r.rows[0].Optional)
	}
	calls := 0
	late := func(context.Context) (view.Node, bool, error) { calls++; return view.Node{}, calls > 12, nil }
	r := &run{Config: Config{Way: Sockets{}, View: late}, step: long}
	require.True(t, r.agentAnswers(t.Context()))
	require.Equal(t, 40*time.Second, (&run{Config: Config{Timeout: time.Minute}}).auditPatience())
	require.Equal(t, 200*time.Second, (&run{Config: Config{Timeout: 10 * time.Minute}}).auditPatience())
}
