package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/api"
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

func topCommand(node local) *cobra.Command {
	var (
		o      topOptions
		out    *output
		called call
	)
	c := &cobra.Command{
		Use:   "top",
		Short: "Show what containers use of their shares, live",
		Long: `Shows what the containers of this node use of their shares, and updates it. It
reads the containers' own accounting, and requests from the node's agent, if
one runs, what NVML measures.

MEMORY is the memory in use, of what is granted. CORES is the part of the GPU's
compute time that was charged to the container between two readings, of its
limit; WAITED is the part of that time in which its launches waited for it.
Nothing is charged while no limit is enforced, and CORES is "-": the share has
no limit, or with the policy "default" no other container uses the GPU. With an
agent, and with --all-nodes, CORES is the container's use by NVML.

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
			if !called.allNodes() {
				files, dir := read, stateDir(c)
				read = func(ctx context.Context) (view.Node, error) {
					n, err := files(ctx)
					if err == nil {
						node.measure(ctx, &n, dir)
					}
					return n, err
				}
			}
			if o.once || out.forPrograms() || !term.CanDraw(c.OutOrStdout(), os.Getenv) {
				return topOnce(c, out, o, read)
			}
			return work(topLive(c.Context(), styleOf(c), o, out.form == formWide, read))
		},
	}
	ofCluster(c, node, c.Use, c.Short, topOfCluster, "  kubectl gpuslice top\n  kubectl gpuslice top --once --sort cores -n team-a")
	f := c.Flags()
	f.SortFlags = false
	f.DurationVar(&o.interval, "interval", time.Second, "Read again after `TIME`.")
	f.BoolVar(&o.once, "once", false, "Print once, after two readings.")
	o.by = choiceFlag(c, false, "sort", "Sort by `KEY`: WORDS.", sortKeys...)
	f.BoolVar(&o.reverse, "reverse", false, "Reverse the order.")
	f.StringVar(&o.filter, "filter", "", "Show only rows with `TEXT` in the pod, the container's name, ID or state, or the GPU's UUID.")
	out = outputFlag(c, node, true, formTable, formWide)
	called = nodesFlags(c, node)
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
	columns := topColumnsOf(p.Style, p.Wide, shown.Containers)
	t := topTable(p.Style, columns, "")
	for _, r := range shown.Containers {
		addTopRow(t, columns, r)
	}
	if _, err := fmt.Fprintln(p, strings.Join(append(lines, t.Lines()...), "\n")); err != nil {
		return err
	}
	n := view.Node{Problems: shown.problems()}
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
	ctx, stop := signal.NotifyContext(ctx, notIgnored(syscall.SIGHUP, syscall.SIGQUIT)...)
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

type reading struct {
	at   time.Time
	node view.Node
}

// topShown is the JSON of `gpuslice top`.
type topShown struct {
	Node    string    `json:"node"`
	TakenAt time.Time `json:"takenAt"`
	// IntervalSeconds is the time between the readings; 0: there was only one.
	IntervalSeconds float64  `json:"intervalSeconds"`
	GPUs            []topGPU `json:"gpus"`
	Containers      []topRow `json:"containers"`
	// Violations are the audit's, with an agent.
	Violations []view.Violation `json:"violations,omitempty"`
	Problems   []string         `json:"problems,omitempty"`
}

// problems are the violations and the problems, as text.
func (t topShown) problems() []string { return append(violationTexts(t.Violations), t.Problems...) }

type topGPU struct {
	view.GPU
	// CoresUsedPercent is by NVML, or else the sum of its containers; nil: not known.
	CoresUsedPercent *float64 `json:"coresUsedPercent,omitempty"`
	// CoresUsedAtLeastPercent is the sum of the known parts if the use of a container is not known.
	CoresUsedAtLeastPercent *float64 `json:"coresUsedAtLeastPercent,omitempty"`
	// OutsideBytes is what NVML counts beyond the containers' accounting and residue: programs without a share, or beyond it.
	OutsideBytes *uint64 `json:"outsideBytes,omitempty"`
}

// memoryUsed is by NVML, or else by the containers' accounting.
func (c topGPU) memoryUsed() uint64 {
	if c.Telemetry != nil && c.Telemetry.MemoryUsedBytes != nil {
		return *c.Telemetry.MemoryUsedBytes
	}
	return c.UsedBytes
}

// topRow is a container's share of one GPU with its use.
type topRow struct {
	Pod         string `json:"pod,omitempty"`
	Container   string `json:"container"`
	ContainerID string `json:"containerID"`
	State       string `json:"state"`
	Enforcement string `json:"enforcement"`
	GPU         string `json:"gpu"`
	UUID        string `json:"uuid"`
	UsedBytes   uint64 `json:"usedBytes"`
	UseUnknown  bool   `json:"useUnknown,omitempty"`
	MemoryMiB   int64  `json:"memoryMiB"`
	Cores       int    `json:"cores"` // 0: no limit
	// CoresUsedPercent is its use of the GPU's time by NVML, or else the time that its limiter measured;
	// WaitedPercent is the time in which they waited. Nil: only one reading, or no limit was enforced.
	CoresUsedPercent *float64 `json:"coresUsedPercent,omitempty"`
	WaitedPercent    *float64 `json:"waitedPercent,omitempty"`
	LaunchesPerSec   *float64 `json:"launchesPerSecond,omitempty"`
	Processes        int      `json:"processes"`
	UsageProblem     string   `json:"usageProblem,omitempty"`
}

func (r topRow) key() string { return cmp.Or(r.ContainerID, r.Pod+"/"+r.Container) + " " + r.UUID }

// topOf compares two readings; the first may be empty.
func topOf(before, now reading) topShown {
	shown := topShown{Node: now.node.Name, TakenAt: now.at.UTC(), GPUs: []topGPU{}, Containers: []topRow{}, Violations: now.node.Violations, Problems: now.node.Problems}
	elapsed := now.at.Sub(before.at)
	if before.at.IsZero() || elapsed < 0 {
		elapsed = 0
	}
	shown.IntervalSeconds = elapsed.Seconds()
	last := map[string]view.Share{}
	for _, c := range before.node.Containers {
		for _, s := range c.Shares {
			last[topRow{Pod: c.Pod, Container: name(c), ContainerID: c.ContainerID, UUID: s.UUID}.key()] = s
		}
	}
	labels := gpuLabels(now.node)
	used, accounted := map[string]float64{}, map[string]uint64{}
	known, unknown := map[string]bool{}, map[string]bool{} // a GPU's sum with an unknown part is unknown
	for _, c := range now.node.Containers {
		for _, s := range c.Shares {
			r := topRow{
				Pod: c.Pod, Container: name(c), ContainerID: c.ContainerID, State: c.State, Enforcement: c.Enforcement,
				GPU: gpu(s.UUID, labels), UUID: s.UUID, UsedBytes: s.UsedBytes, UseUnknown: s.UseUnknown, MemoryMiB: s.MemoryMiB, Cores: s.CorePercent,
				Processes: s.Processes, UsageProblem: c.UsageProblem,
			}
			if was, there := last[r.key()]; there && c.UsageProblem == "" && !s.UseUnknown {
				r.rates(was, s, elapsed)
			}
			if s.CoreUsedPercent != nil {
				r.CoresUsedPercent = s.CoreUsedPercent // includes what no limit counts
			}
			accounted[s.UUID] += s.UsedBytes + s.ResidueBytes
			switch {
			case r.CoresUsedPercent != nil:
				used[s.UUID] += *r.CoresUsedPercent
				known[s.UUID] = true
			case c.State == api.StateActive || s.UseUnknown:
				unknown[s.UUID] = true
			}
			shown.Containers = append(shown.Containers, r)
		}
		if len(c.Shares) == 0 {
			shown.Containers = append(shown.Containers, topRow{
				Pod: c.Pod, Container: name(c), ContainerID: c.ContainerID, State: c.State, Enforcement: c.Enforcement, GPU: blocked(c, labels),
			})
		}
	}
	for _, c := range now.node.GPUs {
		t := topGPU{GPU: c}
		if sum := min(used[c.UUID], 100); known[c.UUID] && unknown[c.UUID] && sum < 100 {
			t.CoresUsedAtLeastPercent = &sum
		} else if known[c.UUID] {
			t.CoresUsedPercent = &sum
		}
		if c.Telemetry != nil && c.Telemetry.UtilizationPercent != nil { // of all programs
			busy := float64(*c.Telemetry.UtilizationPercent)
			t.CoresUsedPercent, t.CoresUsedAtLeastPercent = &busy, nil
		}
		if c.Telemetry != nil && c.Telemetry.MemoryUsedBytes != nil {
			outside := *c.Telemetry.MemoryUsedBytes - min(accounted[c.UUID], *c.Telemetry.MemoryUsedBytes)
			t.OutsideBytes = &outside
		}
		shown.GPUs = append(shown.GPUs, t)
	}
	return shown
}

// rates sets the rates between two readings. A tenant can write the counters, so they are limited.
func (r *topRow) rates(was, is view.Share, elapsed time.Duration) {
	if elapsed <= 0 {
		return
	}
	part := func(was, is uint64) *float64 {
		if is < was {
			return nil
		}
		percent := min(100*float64(is-was)/float64(elapsed.Nanoseconds()), 100)
		return &percent
	}
	stood := was.ComputeNanoseconds == is.ComputeNanoseconds && was.Launches == is.Launches
	if stood && (is.CorePercent == 0 || is.CorePercent >= 100) { // it may have worked without being counted
		return
	}
	r.WaitedPercent = part(was.ThrottledNanoseconds, is.ThrottledNanoseconds)
	r.CoresUsedPercent = part(was.ComputeNanoseconds, is.ComputeNanoseconds)
	const most = 1e8 // a launch takes longer than 10 ns
	if launches := float64(is.Launches-was.Launches) / elapsed.Seconds(); is.Launches >= was.Launches && launches <= most {
		r.LaunchesPerSec = &launches
	}
}

// sortKeys are the values of --sort, in the order of the key s.
var sortKeys = []string{"memory", "cores", "waited", "pod", "gpu"}

// sortRows sorts by a key: numbers descending, names ascending. Equal rows are sorted by name, so that the order is stable.
func sortRows(rows []topRow, by string, reverse bool) {
	number := func(p *float64) float64 {
		if p == nil {
			return -1
		}
		return *p
	}
	slices.SortStableFunc(rows, func(a, b topRow) int {
		n := 0
		switch by {
		case "memory":
			n = cmp.Compare(b.UsedBytes, a.UsedBytes)
		case "cores":
			n = cmp.Compare(number(b.CoresUsedPercent), number(a.CoresUsedPercent))
		case "waited":
			n = cmp.Compare(number(b.WaitedPercent), number(a.WaitedPercent))
		case "gpu":
			n = cmp.Compare(a.GPU, b.GPU)
		}
		if n == 0 {
			n = cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container), cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.GPU, b.GPU))
		}
		if reverse {
			return -n
		}
		return n
	})
}

func filterRows(rows []topRow, text string) []topRow {
	if text == "" {
		return rows
	}
	text = strings.ToLower(text)
	kept := []topRow{}
	for _, r := range rows {
		if strings.Contains(strings.ToLower(strings.Join([]string{r.Pod, r.Container, r.ContainerID, r.State, r.Enforcement, r.UUID}, " ")), text) {
			kept = append(kept, r)
		}
	}
	return kept
}
