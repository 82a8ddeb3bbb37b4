// Package page is the agent's page of its node: the GPUs, the containers on them, and violations.
package page

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/internal/htmlpage"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// Handler serves the page of the node that read returns.
func Handler(read func(context.Context) (view.Node, error)) http.Handler {
	return htmlpage.Handler(func(ctx context.Context, _ *http.Request) (htmlpage.Page, error) {
		n, err := read(ctx)
		p := describe(n, time.Now())
		if found := n.Violations; len(found) > 0 {
			p.Sections = slices.Insert(p.Sections, 0, violationsOf(found, time.Now()))
		}
		return p, err
	})
}

func violationsOf(found []view.Violation, now time.Time) htmlpage.Section {
	t := htmlpage.Table{Caption: "GPU use without or above a grant", Columns: []string{"Container", "Detail"}}
	for _, v := range found {
		container := htmlpage.Cell{Text: cmp.Or(v.Container, "no container"), Notes: []string{"for " + duration(now.Sub(v.Since))}}
		t.Rows = append(t.Rows, []htmlpage.Cell{container, {Text: v.Detail, Warning: v.Kind}})
	}
	return htmlpage.Section{Title: "Violations", Warning: fmt.Sprintf("%d now", len(found)), Tables: []htmlpage.Table{t}}
}

const mib = htmlpage.MiB

func describe(n view.Node, now time.Time) htmlpage.Page {
	p := htmlpage.Page{Title: "GPUs of " + cmp.Or(n.Name, "this node"), Problems: slices.Clone(n.Problems), Legend: []htmlpage.Key{
		{Kind: htmlpage.Granted, Text: "granted"}, {Kind: htmlpage.Used, Text: "used"}, {Kind: htmlpage.Residue, Text: "also counted by the driver"},
	}}
	withShares := 0
	for i := range n.Containers {
		if len(n.Containers[i].Shares) > 0 {
			withShares++
		}
	}
	p.Lead = htmlpage.Count(len(n.GPUs), "GPU") + ", " + htmlpage.Count(withShares, "container") + " with a share"
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
		p.Sections = append(p.Sections, htmlpage.Section{Title: "GPUs", Lead: "No GPUs found. Run gpuslice doctor on the node."})
	}
	if rest := elsewhere(n.Containers, shown, now); len(rest) > 0 {
		p.Sections = append(p.Sections, htmlpage.Section{Title: "On no GPU of this node", Tables: []htmlpage.Table{{
			Caption: "Containers with an unknown GPU", Columns: []string{"Container", "Memory", "Compute time"}, Rows: rest,
		}}})
	}
	return p
}

func gpu(c *view.GPU, containers []view.Container, now time.Time) htmlpage.Section {
	s := htmlpage.Section{Title: fmt.Sprintf("GPU %d: %s", c.Index, c.Model), Lead: c.UUID}
	if c.GrantableReplicas > 0 {
		s.Lead += fmt.Sprintf(" · %d of %d containers", c.GrantedContainers, c.GrantableReplicas)
	} else {
		s.Warning = "not offered"
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
	s.Tables = []htmlpage.Table{
		{Caption: "GPU in total", Columns: []string{"", "Granted", "Used"}, Rows: [][]htmlpage.Cell{gpuMemory(c), gpuCompute(c)}},
		{
			Caption: "Containers on GPU " + fmt.Sprint(c.Index), Columns: []string{"Container", "Memory", "Compute time"},
			Rows: rows(containers, now, func(uuid string) bool { return uuid == c.UUID }), Empty: "No container has a share of it.",
		},
	}
	return s
}

func gpuMemory(c *view.GPU) []htmlpage.Cell {
	// With oversubscription, more can be granted than the GPU has.
	granted, grantable := float64(c.GrantedMemoryMiB)*mib, float64(c.GrantableMiB)*mib
	total, used, source := float64(c.MemoryMiB)*mib, float64(c.UsedBytes), "as containers count it"
	if t := c.Telemetry; t != nil && t.MemoryUsedBytes != nil {
		used, source = float64(*t.MemoryUsedBytes), "from NVML"
	}
	return []htmlpage.Cell{
		{Text: "Memory"},
		htmlpage.Amount(htmlpage.Granted, granted, grantable, fmt.Sprintf("%s of %s", htmlpage.GiB(granted), htmlpage.GiB(grantable))),
		htmlpage.Amount(htmlpage.Used, used, total, fmt.Sprintf("%s of %s", htmlpage.GiB(used), htmlpage.GiB(total)), source),
	}
}

func gpuCompute(c *view.GPU) []htmlpage.Cell {
	used := htmlpage.Cell{Text: "not measured"}
	if t := c.Telemetry; t != nil && t.UtilizationPercent != nil {
		used = htmlpage.Amount(htmlpage.Used, float64(*t.UtilizationPercent), 100, fmt.Sprintf("%d %%", *t.UtilizationPercent))
	}
	granted := fmt.Sprintf("%d of %d %%", c.GrantedCores, c.GrantableCores)
	return []htmlpage.Cell{{Text: "Compute time"}, htmlpage.Amount(htmlpage.Granted, float64(c.GrantedCores), float64(c.GrantableCores), granted), used}
}

// rows are the shares of the GPUs for which here is true.
func rows(containers []view.Container, now time.Time, here func(uuid string) bool) (all [][]htmlpage.Cell) {
	for i := range containers {
		c := &containers[i]
		for j := range c.Shares {
			if here(c.Shares[j].UUID) {
				all = append(all, []htmlpage.Cell{container(c), shareMemory(c, &c.Shares[j]), shareCompute(&c.Shares[j], now)})
			}
		}
	}
	return all
}

// elsewhere are the shares of GPUs that are not shown, and containers without a share.
func elsewhere(containers []view.Container, shown map[string]bool, now time.Time) [][]htmlpage.Cell {
	all := rows(containers, now, func(uuid string) bool { return !shown[uuid] })
	for i := range containers {
		if c := &containers[i]; len(c.Shares) == 0 {
			all = append(all, []htmlpage.Cell{container(c), {Text: "not known"}, {Text: "not known"}})
		}
	}
	return all
}

func container(c *view.Container) htmlpage.Cell {
	cell := htmlpage.Cell{Text: cmp.Or(c.Name, c.ContainerID), Warning: c.UsageProblem}
	if c.Pod != "" {
		cell.Text = c.Pod + "/" + c.Name
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
	return cell
}

func shareMemory(c *view.Container, s *view.Share) htmlpage.Cell {
	limit, used, residue := float64(s.MemoryMiB)*mib, float64(s.UsedBytes), float64(s.ResidueBytes)
	if c.UsageProblem != "" {
		return htmlpage.Cell{Text: "not known, of " + htmlpage.GiB(limit)}
	}
	cell := htmlpage.Cell{
		Text:  fmt.Sprintf("%s of %s", htmlpage.GiB(used), htmlpage.GiB(limit)),
		Bars:  []htmlpage.Bar{{Of: limit, Parts: []htmlpage.Part{{Kind: htmlpage.Used, Value: used}, {Kind: htmlpage.Residue, Value: residue}}}},
		Notes: []string{fmt.Sprintf("%d processes", s.Processes)},
	}
	if s.Processes == 1 {
		cell.Notes[0] = "1 process"
	}
	if residue > 0 {
		cell.Notes = append(cell.Notes, htmlpage.GiB(residue)+" more counted by the driver")
	}
	if s.RefusedAllocations > 0 {
		cell.Notes = append(cell.Notes, fmt.Sprintf("%d allocations refused", s.RefusedAllocations))
	}
	if used+residue > limit {
		cell.Warning = "more than granted"
	}
	return cell
}

func shareCompute(s *view.Share, now time.Time) htmlpage.Cell {
	limit, most := float64(s.CorePercent), fmt.Sprintf("of %d %%", s.CorePercent)
	if s.CorePercent == 0 {
		limit, most = 100, "of the GPU, not limited"
	}
	cell := htmlpage.Cell{Text: "not measured, " + most}
	if s.CoreUsedPercent != nil {
		cell.Text = fmt.Sprintf("%.0f %% %s", *s.CoreUsedPercent, most)
		cell.Bars = []htmlpage.Bar{{Of: limit, Parts: []htmlpage.Part{{Kind: htmlpage.Used, Value: *s.CoreUsedPercent}}}}
	}
	if s.ThrottledNanoseconds > 0 {
		cell.Notes = append(cell.Notes, "waited "+duration(time.Duration(min(s.ThrottledNanoseconds, 1<<62)))+" for its share")
	}
	switch ago := now.Sub(s.LastLaunch); {
	case s.LastLaunch.IsZero():
	case ago < time.Minute:
		cell.Notes = append(cell.Notes, "active")
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
