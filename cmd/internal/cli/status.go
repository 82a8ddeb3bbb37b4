package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

func statusCommand(node local) *cobra.Command {
	var (
		out    *output
		called call
		follow bool
	)
	c := &cobra.Command{
		Use:   "status",
		Short: "Show GPUs and containers: what is granted and what is in use",
		Long: `Shows the GPUs of this node, and the containers that have a share of them.

It reads the agent's state directory and the containers' own accounting, and
sends no request to a daemon. Memory is what containers account for, rounded up
to MiB, beside what they are granted.

The state of a container is "active" while its share is reserved, "released"
when it has ended and its runtime has not removed it yet, and "corrupt" when its
record cannot be read; the reason is printed below. It is "blocking" when its
grant is not known: nothing more is granted on the GPUs that it may have.

The command changes nothing and delays no container.

Exit status: 0 success (what could not be read is among the problems); 1 nothing
could be read; 2 invalid usage.`,
		Example: `  gpuslice status
  gpuslice status -o json | jq '.containers[] | {pod, container, shares}'
  kubectl gpuslice status -n team-a --watch`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			read, err := called.nodeReader()
			if err != nil {
				return err
			}
			local := !called.allNodes()
			show := func(ctx context.Context, w io.Writer) error {
				n, err := read(ctx)
				if err != nil {
					return err
				}
				return out.printTo(w, styleOf(c), n, namesOf(n), func(p page) error {
					err := statusTables(p, n)
					if err == nil && local {
						err = noteOfAgent(p, n, node, stateDir(c))
					}
					return err
				})
			}
			if follow {
				return work(watch(c.Context(), watchInterval, show, c.OutOrStdout(), c.ErrOrStderr()))
			}
			return work(show(c.Context(), c.OutOrStdout()))
		},
	}
	ofCluster(c, node, c.Use, c.Short, statusOfCluster, "  kubectl gpuslice status\n  kubectl gpuslice status -n team-a --watch")
	out = outputFlag(c, node, true, formTable, formWide)
	called = nodesFlags(c, node)
	namespaceFilter(c)
	c.Flags().BoolVarP(&follow, "watch", "w", false, "Print again when something changes.")
	return c
}

func statusTables(p page, n view.Node) error {
	if err := gpuTable(p, n); err != nil {
		return err
	}
	fmt.Fprintln(p)
	if err := containerTable(p, n); err != nil {
		return err
	}
	if v := n.Verification; v != nil {
		fmt.Fprintf(p, "\nisolation: %s\n", term.Clean(v.Message))
	}
	return problems(p, n)
}

// noteOfAgent names what nothing enforces on a host for docker or podman without an agent.
func noteOfAgent(p page, n view.Node, node local, stateDir string) error {
	if !slices.ContainsFunc(n.Containers, func(c view.Container) bool { return c.Owner == api.OwnerRuntime }) {
		return nil
	}
	text, err := node.unchecked(stateDir)
	if err != nil || text == "" {
		return err
	}
	_, err = fmt.Fprintf(p, "\nnote: gpuslice-agent does not run: %s\n", text)
	return err
}

func gpuTable(p page, n view.Node) error {
	t := p.table(append([]term.Column{{Head: "GPU"}, {Head: "MODEL", Min: 8}, {Head: "UUID", Min: 12}},
		columns("CONTAINERS", "MEMORY GRANTED", "CORES GRANTED", "MEMORY USED")...)...)
	t.Empty = "(no GPUs)"
	if p.Wide {
		t.Columns = append(t.Columns, columns("MEMORY LEFT", "CORES LEFT", "MEMORY")...)
	}
	measured := p.Wide && slices.ContainsFunc(n.GPUs, func(c view.GPU) bool { return c.Telemetry != nil })
	if measured {
		t.Columns = append(t.Columns, columns("NVML USED", "BUSY", "TEMPERATURE", "POWER")...)
	}
	for _, c := range n.GPUs {
		row := []any{
			label(c), modelCell(c), c.UUID, fmt.Sprintf("%s/%d", granted(c, c.GrantedContainers), c.GrantableReplicas),
			fmt.Sprintf("%s/%d MiB", granted(c, c.GrantedMemoryMiB), c.GrantableMiB), fmt.Sprintf("%s/%d %%", granted(c, c.GrantedCores), c.GrantableCores),
			unless(c.UseUnknown, "%d MiB", mebibytes(c.UsedBytes)),
		}
		if p.Wide {
			row = append(row, unless(c.GrantsUnknown, "%d MiB", max(c.GrantableMiB-c.GrantedMemoryMiB, 0)),
				unless(c.GrantsUnknown, "%d %%", max(c.GrantableCores-c.GrantedCores, 0)), fmt.Sprintf("%d MiB", c.MemoryMiB))
		}
		if measured {
			row = append(row, telemetry(c.Telemetry)...)
		}
		t.Row(row...)
	}
	return t.Write(p)
}

func containerTable(p page, n view.Node) error {
	t := p.table(append([]term.Column{{Head: "POD", Min: 12}, {Head: "CONTAINER", Min: 9}},
		columns("STATE", "GPU", "MEMORY USED", "CORES", "PROCESSES", "ENFORCEMENT")...)...)
	t.Empty = "(none)"
	if p.Wide {
		t.Columns = append(t.Columns, columns("CONTAINER ID", "BY", "CREATED", "RESIDUE", "REFUSED", "COMPUTE", "WAITED", "LAUNCHES", "LAST LAUNCH")...)
	}
	labels := gpuLabels(n)
	for _, c := range n.Containers {
		state := term.Cell{Text: c.State, Color: stateColor(c.State)}
		row := func(gpu string, used ...any) {
			row := append([]any{cmp.Or(c.Pod, "-"), nameAndOthers(c), state, gpu}, used[:3]...)
			row = append(row, cmp.Or(c.Enforcement, "-"))
			if p.Wide {
				row = append(append(row, cmp.Or(c.ContainerID, "-"), cmp.Or(c.Owner, "-"), moment(c.CreatedAt)), used[3:]...)
			}
			t.Row(row...)
		}
		for _, s := range c.Shares {
			if s.UseUnknown {
				row(gpu(s.UUID, labels), fmt.Sprintf("-/%d MiB", s.MemoryMiB), cores(s.CorePercent), "-", "-", "-", "-", "-", "-", "-")
				continue
			}
			row(gpu(s.UUID, labels), fmt.Sprintf("%d/%d MiB", mebibytes(s.UsedBytes), s.MemoryMiB), cores(s.CorePercent), s.Processes,
				fmt.Sprintf("%d MiB", mebibytes(s.ResidueBytes)), s.RefusedAllocations, span(s.ComputeNanoseconds), span(s.ThrottledNanoseconds),
				s.Launches, moment(s.LastLaunch))
		}
		if len(c.Shares) == 0 {
			row(blocked(c, labels), "-", "-", "-", "-", "-", "-", "-", "-", "-")
		}
	}
	return t.Write(p)
}

// unless formats a number that is known.
func unless(unknown bool, format string, number any) string {
	if unknown {
		return "-"
	}
	return fmt.Sprintf(format, number)
}

// granted formats what is granted of a GPU.
func granted(c view.GPU, number any) string { return unless(c.GrantsUnknown, "%d", number) }

func telemetry(t *hardware.Telemetry) []any {
	if t == nil {
		t = &hardware.Telemetry{}
	}
	memory, power := "-", "-"
	if t.MemoryUsedBytes != nil {
		memory = fmt.Sprintf("%d MiB", mebibytes(*t.MemoryUsedBytes))
	}
	if t.PowerMilliwatts != nil {
		power = fmt.Sprintf("%.0f W", float64(*t.PowerMilliwatts)/1000)
	}
	return []any{memory, known(t.UtilizationPercent, "%"), known(t.TemperatureCelsius, "°C"), power}
}

func known(n *int, unit string) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprintf("%d %s", *n, unit)
}

func modelCell(c view.GPU) term.Cell {
	switch {
	case !c.Healthy:
		return term.Cell{Text: c.Model + " (unhealthy)", Color: term.Red}
	case c.Cordoned:
		return term.Cell{Text: c.Model + " (cordoned)", Color: term.Yellow}
	}
	return term.Cell{Text: c.Model}
}

func problems(p page, n view.Node) error {
	var all []string
	for _, c := range n.GPUs {
		if !c.Healthy {
			all = append(all, fmt.Sprintf("GPU %s is unhealthy: %s", label(c), c.Unhealthy))
		}
	}
	all = append(all, violationTexts(n.Violations)...)
	for _, text := range append(all, n.Problems...) {
		if _, err := fmt.Fprintf(p, "\n%s %s\n", p.Paint(term.Red, "problem:"), term.Clean(text)); err != nil {
			return err
		}
	}
	return nil
}

func violationTexts(violations []view.Violation) (all []string) {
	for _, v := range violations {
		text := fmt.Sprintf("violation %s of %s: %s", v.Kind, cmp.Or(v.Container, "no container"), v.Detail)
		if v.Node != "" {
			text = "node " + v.Node + ": " + text
		}
		all = append(all, text)
	}
	return all
}

func stateColor(state string) term.Color {
	switch state {
	case api.StateActive:
		return term.Green
	case api.StateReleased:
		return term.Faint
	case api.StateGranted:
		return term.Plain
	}
	return term.Red
}

// nameAndOthers adds the number of containers that have its shares in common.
func nameAndOthers(c view.Container) string {
	if len(c.Members) > 1 {
		return fmt.Sprintf("%s +%d", name(c), len(c.Members)-1)
	}
	return name(c)
}

// name returns a container's name, or its ID if its record has none.
func name(c view.Container) string {
	if c.Name == "" {
		return c.ContainerID
	}
	return c.Name
}

func label(c view.GPU) string {
	text := fmt.Sprint(c.Index)
	if c.MIGProfile != "" {
		text += "/" + c.MIGProfile
	}
	if c.Node != "" {
		text = c.Node + ":" + text
	}
	return text
}

func gpuLabels(n view.Node) map[string]string {
	labels := make(map[string]string, len(n.GPUs))
	for _, c := range n.GPUs {
		labels[c.UUID] = label(c)
	}
	return labels
}

func gpu(uuid string, labels map[string]string) string {
	if l, ok := labels[uuid]; ok {
		return l
	}
	return uuid
}

func blocked(c view.Container, labels map[string]string) string {
	if c.State != api.StateBlocking {
		return "-"
	}
	if len(c.Blocks) == 0 {
		return "all"
	}
	var gpus []string
	for _, uuid := range c.Blocks {
		gpus = append(gpus, gpu(uuid, labels))
	}
	return strings.Join(gpus, ",")
}

// mebibytes rounds up, so that one byte is not shown as 0.
func mebibytes(bytes uint64) uint64 { return bytes/(1<<20) + min(bytes%(1<<20), 1) }

func cores(percent int) string {
	if percent == 0 {
		return "-"
	}
	return fmt.Sprintf("%d %%", percent)
}

func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func span(nanoseconds uint64) string {
	const most = uint64(1<<63 - 1)
	return time.Duration(min(nanoseconds, most)).Round(time.Millisecond).String()
}
