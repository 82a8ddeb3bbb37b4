package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
)

func statusCommand() *cobra.Command {
	var out *output
	c := &cobra.Command{
		Use:   "status",
		Short: "Show this node's GPUs: what is granted, and what is in use",
		Long: `Shows this node's GPUs and the containers that have a share of them.

The numbers come from the agent's state directory and the containers' own
accounting; no daemon is asked. Memory is what containers account for, rounded
up to MiB, beside what they are granted.

A container is "active" while its share is booked, "released" when it has ended
and its runtime has not removed it yet, and "corrupt" when its record can't be
read: what is known of it is shown with its container's id, and why is printed
below. It is "blocking" when it is there and its grant can't be found out: as
long as it is, nothing more is granted on the GPUs that it may hold.

To look changes nothing and keeps no container waiting.

Exit status: 0 it is shown (what could not be read is among the problems);
1 nothing could be read; 2 the call is wrong.`,
		Example: `  gpuslice status
  gpuslice status -o json | jq '.containers[] | {pod, container, shares}'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			n, err := readNode(c)
			if err != nil {
				return err
			}
			return work(out.print(c, n, func(p page) error { return statusTables(p, n) }))
		},
	}
	out = outputFlag(c, formTable, formWide, formJSON, formYAML)
	wideFlag(c)
	return c
}

// readNode reads the node whose state directory was named.
func readNode(c *cobra.Command) (view.Node, error) {
	read, err := nodeReader(c)
	if err != nil {
		return view.Node{}, err
	}
	n, err := read(c.Context())
	return n, work(err)
}

// statusTables prints a status for people.
func statusTables(p page, n view.Node) error {
	if err := gpuTable(p, n); err != nil {
		return err
	}
	fmt.Fprintln(p)
	if err := containerTable(p, n); err != nil {
		return err
	}
	return problems(p, n)
}

func gpuTable(p page, n view.Node) error {
	columns := []term.Column{
		{Head: "GPU"}, {Head: "MODEL", Min: 8}, {Head: "UUID", Min: 12}, {Head: "CONTAINERS"},
		{Head: "MEMORY GRANTED"}, {Head: "CORES GRANTED"}, {Head: "MEMORY USED"},
	}
	if p.Wide {
		columns = append(columns, term.Column{Head: "MEMORY LEFT"}, term.Column{Head: "CORES LEFT"}, term.Column{Head: "MEMORY"})
	}
	asked := p.Wide && slices.ContainsFunc(n.GPUs, func(c view.GPU) bool { return c.Telemetry != nil })
	if asked {
		for _, head := range []string{"NVML USED", "BUSY", "TEMPERATURE", "POWER"} {
			columns = append(columns, term.Column{Head: head})
		}
	}
	t := p.table(columns...)
	for _, c := range n.GPUs {
		row := []any{
			label(c), modelCell(c), c.UUID, fmt.Sprintf("%d/%d", c.GrantedContainers, c.GrantableSlots),
			fmt.Sprintf("%d/%d MiB", c.GrantedMemoryMiB, c.GrantableMiB), fmt.Sprintf("%d/%d %%", c.GrantedCores, c.GrantableCores),
			fmt.Sprintf("%d MiB", mebibytes(c.UsedBytes)),
		}
		if p.Wide {
			row = append(row, fmt.Sprintf("%d MiB", max(c.GrantableMiB-c.GrantedMemoryMiB, 0)),
				fmt.Sprintf("%d %%", max(c.GrantableCores-c.GrantedCores, 0)), fmt.Sprintf("%d MiB", c.MemoryMiB))
		}
		if asked {
			row = append(row, telemetry(c.Telemetry)...)
		}
		t.Row(row...)
	}
	if t.Len() == 0 {
		t.Row("(no GPUs)")
	}
	return t.Write(p)
}

func containerTable(p page, n view.Node) error {
	columns := []term.Column{
		{Head: "POD", Min: 12}, {Head: "CONTAINER", Min: 9}, {Head: "STATE"}, {Head: "GPU"},
		{Head: "MEMORY USED"}, {Head: "CORES"}, {Head: "PROCESSES"}, {Head: "ENFORCEMENT"},
	}
	if p.Wide {
		for _, head := range []string{"CONTAINER ID", "BY", "CREATED", "RESIDUE", "REFUSED", "COMPUTE", "WAITED", "LAUNCHES", "LAST LAUNCH"} {
			columns = append(columns, term.Column{Head: head})
		}
	}
	t := p.table(columns...)
	labels := gpuLabels(n)
	for _, c := range n.Containers {
		state := term.Cell{Text: c.State, Color: stateColor(c.State)}
		for _, s := range c.Shares {
			row := []any{
				orDash(c.Pod), name(c), state, gpu(s.UUID, labels), fmt.Sprintf("%d/%d MiB", mebibytes(s.UsedBytes), s.MemoryMiB),
				cores(s.CorePercent), s.Processes, orDash(c.Enforcement),
			}
			if p.Wide {
				row = append(row, c.ContainerID, orDash(c.Owner), moment(c.CreatedAt), fmt.Sprintf("%d MiB", mebibytes(s.ResidueBytes)),
					s.RefusedAllocations, span(s.ComputeNanoseconds), span(s.ThrottledNanoseconds), s.Launches, moment(s.LastLaunch))
			}
			t.Row(row...)
		}
		if len(c.Shares) == 0 {
			row := []any{orDash(c.Pod), name(c), state, blocked(c, labels), "-", "-", "-", orDash(c.Enforcement)}
			if p.Wide {
				row = append(row, c.ContainerID, orDash(c.Owner), moment(c.CreatedAt), "-", "-", "-", "-", "-", "-")
			}
			t.Row(row...)
		}
	}
	if t.Len() == 0 {
		t.Row("(none)")
	}
	return t.Write(p)
}

// telemetry are the columns of what NVML says of a GPU, where an agent was asked.
func telemetry(t *nvidia.Telemetry) []any {
	if t == nil {
		t = &nvidia.Telemetry{}
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

// known is a number with its unit, or a dash.
func known(n *int, unit string) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprintf("%d %s", *n, unit)
}

// modelCell is a GPU's model, and whether it is well and to be had.
func modelCell(c view.GPU) term.Cell {
	switch {
	case !c.Healthy:
		return term.Cell{Text: c.Model + " (unhealthy)", Color: term.Red}
	case c.Cordoned:
		return term.Cell{Text: c.Model + " (cordoned)", Color: term.Yellow}
	}
	return term.Cell{Text: c.Model}
}

// problems prints why GPUs are unhealthy, and what could not be read.
func problems(p page, n view.Node) error {
	var all []string
	for _, c := range n.GPUs {
		if !c.Healthy {
			all = append(all, fmt.Sprintf("GPU %s is unhealthy: %s", label(c), c.Unhealthy))
		}
	}
	for _, text := range append(all, n.Problems...) {
		if _, err := fmt.Fprintf(p, "\n%s %s\n", p.Paint(term.Red, "problem:"), term.Clean(text)); err != nil {
			return err
		}
	}
	return nil
}

// stateColor shows what is amiss.
func stateColor(state string) term.Color {
	switch ledger.State(state) {
	case ledger.StateActive:
		return term.Green
	case ledger.StateReleased:
		return term.Faint
	}
	return term.Red
}

// name is a container's name, or its id where its record doesn't tell the name.
func name(c view.Container) string {
	if c.Name == "" {
		return c.ContainerID
	}
	return c.Name
}

// label is a GPU's index, with the profile of a MIG device.
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

// gpuLabels are the labels of a node's GPUs, by UUID.
func gpuLabels(n view.Node) map[string]string {
	labels := make(map[string]string, len(n.GPUs))
	for _, c := range n.GPUs {
		labels[c.UUID] = label(c)
	}
	return labels
}

// GPU is a GPU's label, or its UUID where the node has no such GPU.
func gpu(uuid string, labels map[string]string) string {
	if l, ok := labels[uuid]; ok {
		return l
	}
	return uuid
}

// blocked are the GPUs that a container without known shares keeps from others.
func blocked(c view.Container, labels map[string]string) string {
	if c.State != string(ledger.StateBlocking) {
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

// mebibytes rounds up: a byte too much must not look like none.
func mebibytes(bytes uint64) uint64 { return bytes/(1<<20) + min(bytes%(1<<20), 1) }

// cores is a share of compute time; 0 is one that is not limited.
func cores(percent int) string {
	if percent == 0 {
		return "-"
	}
	return fmt.Sprintf("%d %%", percent)
}

// moment is a time for people; the zero time is one that isn't known.
func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// span is a number of nanoseconds for people.
func span(nanoseconds uint64) string {
	const most = uint64(1<<63 - 1)
	return time.Duration(min(nanoseconds, most)).Round(time.Millisecond).String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
