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

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/view"
)

const shortestInterval = 100 * time.Millisecond

type topOptions struct {
	interval time.Duration
	once     bool
	by       *choice
	reverse  bool
	filter   string
}

func topCommand() *cobra.Command {
	var (
		o      topOptions
		out    *output
		called call
	)
	c := &cobra.Command{
		Use:   "top",
		Short: "Show what containers use of their shares, live",
		Long: `Shows what the containers of this node use of their shares, and updates it. It
reads the containers' own accounting, and sends no request to a daemon.

MEMORY is the memory in use, of what is granted. CORES is the part of the GPU's
compute time that was charged to the container between two readings, of its
limit; WAITED is the part of that time in which its launches waited for it.
Nothing is charged while no limit is enforced, and CORES is "-": the share has
no limit, or with the policy "default" no other container uses the GPU. With
--all-nodes, agents report, and CORES is the container's use by NVML.

The key h lists the keys: q quits, s sorts, / filters, arrows select. With
--once, without a terminal, and with an output for programs, top reads twice,
prints once and ends.

Exit status: 0 success, also if a signal ends the full-screen output; 1
nothing could be read, or a signal came before the output; 2 invalid usage.`,
		Example: `  gpuslice top
  gpuslice top --once --sort cores --filter default/
  gpuslice top -o json | jq '.containers[] | {pod, coresUsedPercent}'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.interval < shortestInterval {
				return fmt.Errorf("--interval: %v is too short: use %v or more", o.interval, shortestInterval)
			}
			read, err := called.nodeReader()
			if err != nil {
				return err
			}
			if o.once || out.forPrograms() || !term.CanDraw(c.OutOrStdout(), os.Getenv) {
				return topOnce(c, out, o, read)
			}
			return work(topLive(c.Context(), styleOf(c), o, out.form == formWide, read))
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.DurationVar(&o.interval, "interval", time.Second, "Read again after `TIME`.")
	f.BoolVar(&o.once, "once", false, "Print once, after two readings.")
	o.by = choiceFlag(c, false, "sort", "Sort by `KEY`: WORDS.", sortKeys...)
	f.BoolVar(&o.reverse, "reverse", false, "Reverse the order.")
	f.StringVar(&o.filter, "filter", "", "Show only rows with `TEXT` in the pod, the container's name, ID or state, or the GPU's UUID.")
	out = outputFlag(c, true, formTable, formWide)
	called = nodesFlags(c)
	namespaceFilter(c)
	return c
}

// errInterrupted prevents that a program takes an empty output for a result.
var errInterrupted = errors.New("interrupted by a signal before the output: run it again")

func topOnce(c *cobra.Command, out *output, o topOptions, read reader) error {
	before, err := take(c.Context(), read)
	if err == nil {
		select {
		case <-c.Context().Done():
		case <-time.After(o.interval):
		}
	}
	now := before
	if err == nil {
		now, err = take(c.Context(), read)
	}
	if c.Context().Err() != nil {
		err = errInterrupted
	}
	if err != nil {
		return work(err)
	}
	shown := topOf(before, now)
	shown.Containers = filterRows(shown.Containers, o.filter)
	sortRows(shown.Containers, o.by.value, o.reverse)
	return work(out.print(c, shown, namesOf(now.node), func(p page) error { return writeTop(p, shown) }))
}

func writeTop(p page, shown topShown) error {
	lines := append(topGPUs(p.Style, shown.GPUs, len(shown.GPUs)+2), "")
	columns := topColumnsOf(p.Style, p.Wide)
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
	program := tea.NewProgram(m, tea.WithoutSignalHandler(), tea.WithColorProfile(colorprofile.ANSI)) // the style has removed colors
	defer context.AfterFunc(ctx, program.Quit)()
	if _, err := program.Run(); err != nil {
		return fmt.Errorf("full-screen output: %w: use --once", err)
	}
	return nil
}
