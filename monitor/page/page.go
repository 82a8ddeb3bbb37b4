// Package page is the agent's page of its node: GPUs as bars, the containers on them, and
// what is wrong. It imports monitor/view and monitor/page/shell; the agent's HTTP door
// calls it.
package page

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/monitor/page/shell"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// Violation is what uses a GPU past its grant, and lasts.
type Violation struct {
	Kind string
	// Container is namespace/pod/container; empty where it is none.
	Container string
	// Detail says for people what was found.
	Detail string
	Since  time.Time
}

// Handler answers / with the node that read reads, and with the violations that last, of each
// who looks for them. Nothing else is answered.
func Handler(read func(context.Context) (view.Node, error), violations ...func() []Violation) http.Handler {
	return shell.Handler(func(ctx context.Context, _ *http.Request) (shell.Page, error) {
		n, err := read(ctx)
		p := describe(n, time.Now())
		var found []Violation
		for _, look := range violations {
			found = append(found, look()...)
		}
		if len(found) > 0 {
			p.Sections = slices.Insert(p.Sections, 0, violationsOf(found, time.Now()))
		}
		return p, err
	})
}

// violationsOf is their section.
func violationsOf(found []Violation, now time.Time) shell.Section {
	s := shell.Section{Title: "Violations", Warning: fmt.Sprintf("%d now", len(found))}
	t := shell.Table{Caption: "What uses GPUs past its grants", Columns: []string{"Container", "What was found"}}
	for _, v := range found {
		who := shell.Cell{Text: v.Container, Notes: []string{"for " + duration(now.Sub(v.Since))}}
		if who.Text == "" {
			who.Text = "no container"
		}
		t.Rows = append(t.Rows, []shell.Cell{who, {Text: v.Detail, Warning: v.Kind}})
	}
	s.Tables = []shell.Table{t}
	return s
}

// mib is a MiB in bytes.
const mib = 1 << 20

// describe is the page of a node, at a time.
func describe(n view.Node, now time.Time) shell.Page {
	p := shell.Page{Title: "GPUs of " + n.Name, Problems: slices.Clone(n.Problems), Legend: []shell.Key{
		{Kind: shell.Granted, Text: "granted"}, {Kind: shell.Used, Text: "used"}, {Kind: shell.Residue, Text: "held by the driver beyond that"},
	}}
	if n.Name == "" {
		p.Title = "GPUs of this node"
	}
	p.Lead = shell.Count(len(n.GPUs), "gpu") + ", " + shell.Count(running(n.Containers), "container") + " with a share of them"
	if n.DriverVersion != "" {
		p.Lead += fmt.Sprintf("; driver %s, CUDA %s", n.DriverVersion, n.CUDAVersion)
	}
	shown := map[string]bool{}
	for i := range n.GPUs {
		c := &n.GPUs[i]
		shown[c.UUID] = true
		p.Sections = append(p.Sections, gpu(c, n.Containers, now))
	}
	if len(n.GPUs) == 0 {
		p.Sections = append(p.Sections, shell.Section{Title: "GPUs", Lead: "No GPUs are known: gpuslice doctor says what the agent lacks."})
	}
	if rest := elsewhere(n.Containers, shown, now); len(rest) > 0 {
		p.Sections = append(p.Sections, shell.Section{Title: "On no GPU of this node", Tables: []shell.Table{{
			Caption: "Containers whose GPU is not known here", Columns: []string{"Container", "Memory", "Compute time"}, Rows: rest,
		}}})
	}
	return p
}

// running is how many hold a share.
func running(all []view.Container) (n int) {
	for i := range all {
		if len(all[i].Shares) > 0 {
			n++
		}
	}
	return n
}

// GPU is a GPU's section.
func gpu(c *view.GPU, containers []view.Container, now time.Time) shell.Section {
	title := fmt.Sprintf("GPU %d: %s", c.Index, c.Model)
	s := shell.Section{Title: title, Lead: c.UUID}
	if c.GrantableSlots > 0 {
		s.Lead += fmt.Sprintf(" · %d of %d containers", c.GrantedContainers, c.GrantableSlots)
	} else {
		s.Warning = "nothing is granted on it"
	}
	if t := c.Telemetry; t != nil {
		if t.TemperatureCelsius != nil {
			s.Lead += fmt.Sprintf(" · %d °C", *t.TemperatureCelsius)
		}
		if t.PowerMilliwatts != nil {
			s.Lead += fmt.Sprintf(" · %.0f W", float64(*t.PowerMilliwatts)/1000)
		}
	}
	if !c.Healthy {
		s.Warning = "not healthy"
		if c.Unhealthy != "" {
			s.Warning += ": " + c.Unhealthy
		}
	}
	s.Tables = []shell.Table{
		{Caption: "Of the GPU", Columns: []string{"", "Granted", "Used"}, Rows: [][]shell.Cell{gpuMemory(c), gpuCompute(c)}},
		{
			Caption: "Containers on GPU " + fmt.Sprint(c.Index), Columns: []string{"Container", "Memory", "Compute time"},
			Rows: rows(containers, now, func(uuid string) bool { return uuid == c.UUID }), Empty: "No container has a share of it.",
		},
	}
	return s
}

func gpuMemory(c *view.GPU) []shell.Cell {
	// What may be granted is more than the GPU has where memory is oversubscribed.
	granted, grantable := float64(c.GrantedMemoryMiB)*mib, float64(c.GrantableMiB)*mib
	total, used, by := float64(c.MemoryMiB)*mib, float64(c.UsedBytes), "as containers count it"
	if t := c.Telemetry; t != nil && t.MemoryUsedBytes != nil {
		used, by = float64(*t.MemoryUsedBytes), "by NVML"
	}
	return []shell.Cell{
		{Text: "Memory"},
		amount(shell.Granted, granted, grantable, fmt.Sprintf("%s of %s", shell.GiB(granted), shell.GiB(grantable))),
		amount(shell.Used, used, total, fmt.Sprintf("%s of %s", shell.GiB(used), shell.GiB(total)), by),
	}
}

func gpuCompute(c *view.GPU) []shell.Cell {
	used := shell.Cell{Text: "not measured"}
	if t := c.Telemetry; t != nil && t.UtilizationPercent != nil {
		used = amount(shell.Used, float64(*t.UtilizationPercent), 100, fmt.Sprintf("%d %%", *t.UtilizationPercent))
	}
	granted := fmt.Sprintf("%d of %d %%", c.GrantedCores, c.GrantableCores)
	return []shell.Cell{{Text: "Compute time"}, amount(shell.Granted, float64(c.GrantedCores), float64(c.GrantableCores), granted), used}
}

// amount is a cell with a bar of one part. More than there is, is said so.
func amount(kind string, value, of float64, text string, notes ...string) shell.Cell {
	c := shell.Cell{Text: text, Notes: notes, Bars: []shell.Bar{{Of: of, Parts: []shell.Part{{Kind: kind, Value: value}}}}}
	if value > of {
		c.Warning = "more than there is"
	}
	return c
}

// rows are the shares, of those containers that have some, on GPUs that here says.
func rows(containers []view.Container, now time.Time, here func(uuid string) bool) (all [][]shell.Cell) {
	for i := range containers {
		c := &containers[i]
		for j := range c.Shares {
			if here(c.Shares[j].UUID) {
				all = append(all, []shell.Cell{container(c), shareMemory(c, &c.Shares[j]), shareCompute(&c.Shares[j], now)})
			}
		}
	}
	return all
}

// elsewhere are the shares of GPUs that are not shown, and containers without a share.
func elsewhere(containers []view.Container, shown map[string]bool, now time.Time) [][]shell.Cell {
	all := rows(containers, now, func(uuid string) bool { return !shown[uuid] })
	for i := range containers {
		if c := &containers[i]; len(c.Shares) == 0 {
			all = append(all, []shell.Cell{container(c), {Text: "not known"}, {Text: "not known"}})
		}
	}
	return all
}

func container(c *view.Container) shell.Cell {
	cell := shell.Cell{Text: c.Name}
	if c.Pod != "" {
		cell.Text = c.Pod + "/" + c.Name
	}
	if cell.Text == "" {
		cell.Text = c.ContainerID
	}
	if c.State != "active" {
		cell.Notes = append(cell.Notes, c.State)
	}
	if c.Enforcement != "" {
		cell.Notes = append(cell.Notes, "limiter: "+c.Enforcement)
	}
	if len(c.Blocks) > 0 {
		cell.Notes = append(cell.Notes, "blocks "+strings.Join(c.Blocks, ", "))
	}
	cell.Warning = c.UsageProblem
	return cell
}

func shareMemory(c *view.Container, s *view.Share) shell.Cell {
	limit, used, residue := float64(s.MemoryMiB)*mib, float64(s.UsedBytes), float64(s.ResidueBytes)
	cell := shell.Cell{
		Text:  fmt.Sprintf("%s of %s", shell.GiB(used), shell.GiB(limit)),
		Bars:  []shell.Bar{{Of: limit, Parts: []shell.Part{{Kind: shell.Used, Value: used}, {Kind: shell.Residue, Value: residue}}}},
		Notes: []string{fmt.Sprintf("%d processes", s.Processes)},
	}
	if s.Processes == 1 {
		cell.Notes[0] = "1 process"
	}
	if residue > 0 {
		cell.Notes = append(cell.Notes, shell.GiB(residue)+" more held by the driver")
	}
	if s.RefusedAllocations > 0 {
		cell.Notes = append(cell.Notes, fmt.Sprintf("%d allocations refused", s.RefusedAllocations))
	}
	switch {
	case c.UsageProblem != "":
		cell.Text, cell.Bars, cell.Notes = "not known, of "+shell.GiB(limit), nil, nil
	case used+residue > limit:
		cell.Warning = "more than granted"
	}
	return cell
}

func shareCompute(s *view.Share, now time.Time) shell.Cell {
	limit, most := float64(s.CorePercent), fmt.Sprintf("of %d %%", s.CorePercent)
	if s.CorePercent == 0 {
		limit, most = 100, "of the GPU, not limited"
	}
	cell := shell.Cell{Text: "not measured, " + most}
	if s.CoreUsedPercent != nil {
		cell.Text = fmt.Sprintf("%.0f %% %s", *s.CoreUsedPercent, most)
		cell.Bars = []shell.Bar{{Of: limit, Parts: []shell.Part{{Kind: shell.Used, Value: *s.CoreUsedPercent}}}}
	}
	if s.ThrottledNanoseconds > 0 {
		cell.Notes = append(cell.Notes, "waited "+duration(time.Duration(min(s.ThrottledNanoseconds, 1<<62)))+" for its share")
	}
	switch ago := now.Sub(s.LastLaunch); {
	case s.LastLaunch.IsZero():
	case ago < time.Minute:
		cell.Notes = append(cell.Notes, "at work")
	default:
		cell.Notes = append(cell.Notes, "last launch "+duration(ago)+" ago")
	}
	return cell
}

// duration is a time in its largest unit.
func duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return "< 1 s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d d", int(d.Hours()/24))
}
