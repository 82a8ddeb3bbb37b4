package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// shortestInterval keeps a call from reading all the time.
const shortestInterval = 100 * time.Millisecond

// topOptions are the flags of top.
type topOptions struct {
	interval time.Duration
	once     bool
	by       *choice
	reverse  bool
	filter   string
}

func topCommand() *cobra.Command {
	var (
		o   = topOptions{by: &choice{value: sortKeys[0], of: sortKeys}}
		out *output
	)
	c := &cobra.Command{
		Use:   "top",
		Short: "Show what this node's containers use of their shares, live",
		Long: `Shows what this node's containers use of their shares, and reads it again and
again. It comes from the containers' own accounting; no daemon is asked.

Memory is that in use, of what is granted. Cores are the part of the GPU's
compute time that a container's launches were charged between two readings, of
its limit, and "waited" the part of that time in which they waited for it.
While no limit is enforced nothing is charged, and cores are "-": where the
share has none, and with the policy "default" on a GPU that nobody else uses.
With --cluster agents are asked, and cores are what NVML says the container had.

The key h lists the keys: q quits, s sorts, / filters, arrows select. Without a
terminal that can be drawn on, with --once, and in a form for programs, it reads
twice, prints once and ends.

Exit status: 0 it is shown, also when a signal ended it while it was drawn; 1
nothing could be read, or a signal came before it was printed once; 2 the call
is wrong.`,
		Example: `  gpuslice top
  gpuslice top --once --sort cores --filter default/
  gpuslice top -o json | jq '.containers[] | {pod, coresUsedPercent}'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.interval < shortestInterval {
				return fmt.Errorf("--interval: want %v or longer, not %v", shortestInterval, o.interval)
			}
			read, err := nodeReader(c)
			if err != nil {
				return err
			}
			if o.once || out.forPrograms() || !term.CanDraw(c.OutOrStdout(), os.Getenv) {
				return topOnce(c, out, o, read)
			}
			return work(topLive(c.Context(), styleOf(c), o, out.value == formWide, read))
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.DurationVar(&o.interval, "interval", time.Second, "`time` between two readings")
	f.BoolVar(&o.once, "once", false, "print once, after two readings")
	f.Var(o.by, "sort", "`key` to sort by: "+oneOf(sortKeys))
	f.BoolVar(&o.reverse, "reverse", false, "sort the other way around")
	f.StringVar(&o.filter, "filter", "", "show only rows with this `text` in the names of pod or container, the container's id, its state or the GPU's UUID")
	_ = c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(sortKeys, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	out = outputFlag(c, formTable, formWide, formJSON, formYAML)
	wideFlag(c)
	return c
}

// reader reads a node.
type reader func(context.Context) (view.Node, error)

// errNothingShown: a program that reads from us must not take nothing for an answer.
var errNothingShown = errors.New("a signal has ended it before anything was printed")

// topOnce prints what two readings show.
func topOnce(c *cobra.Command, out *output, o topOptions, read reader) error {
	before, err := take(c.Context(), read)
	if c.Context().Err() != nil {
		return work(errNothingShown)
	}
	if err != nil {
		return work(err)
	}
	select {
	case <-c.Context().Done():
		return work(errNothingShown)
	case <-time.After(o.interval):
	}
	now, err := take(c.Context(), read)
	if c.Context().Err() != nil {
		return work(errNothingShown)
	}
	if err != nil {
		return work(err)
	}
	shown := topOf(before, now)
	shown.Containers = filterRows(shown.Containers, o.filter)
	sortRows(shown.Containers, o.by.value, o.reverse)
	return work(out.print(c, shown, func(p page) error { return writeTop(p, shown) }))
}

// writeTop prints what top shows for people, as it is at a moment.
func writeTop(p page, shown topShown) error {
	lines := append(topGPUs(p.Style, shown.GPUs, len(shown.GPUs)+2), "")
	columns := columnsOf(p.Style, p.Wide)
	t := topTable(p.Style, columns, "")
	for _, r := range shown.Containers {
		addTopRow(t, columns, r)
	}
	if t.Len() == 0 {
		t.Row("(none)")
	}
	if _, err := fmt.Fprintln(p, strings.Join(append(lines, t.Lines()...), "\n")); err != nil {
		return err
	}
	n := view.Node{Problems: shown.Problems}
	for _, c := range shown.GPUs {
		n.GPUs = append(n.GPUs, c.GPU)
	}
	return problems(p, n)
}

func take(ctx context.Context, read reader) (reading, error) {
	n, err := read(ctx)
	return reading{at: time.Now(), node: n}, err
}

// topLive shows readings until a key or a signal ends it. The program restores the terminal on every exit.
func topLive(ctx context.Context, s term.Style, o topOptions, wide bool, read reader) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	m := &topModel{
		style: s, interval: o.interval, by: o.by.value, reverse: o.reverse, filter: term.Clean(o.filter), wide: wide,
		read: func() (reading, error) { return take(ctx, read) },
	}
	first, err := m.read()
	if err != nil {
		return err
	}
	m.take(first)
	program := tea.NewProgram(m, tea.WithAltScreen(), tea.WithoutSignalHandler(), tea.WithoutBracketedPaste())
	defer context.AfterFunc(ctx, program.Quit)()
	if _, err := program.Run(); err != nil {
		return fmt.Errorf("full-screen output: %w: use --once", err)
	}
	return nil
}
