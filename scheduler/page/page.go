// Package page renders the scheduler's web page: nodes, their GPUs and pods, and pending pods.
package page

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	shell "github.com/gpuslice/gpuslice/internal/htmlpage"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
)

const (
	// nodesAPage: ?page=2 shows next nodes.
	nodesAPage              = 50
	maxPending, maxProblems = 100, 50
)

// Handler serves /; ?node=NAME selects a node. An error of ready, which may be nil, is shown on the
// page.
func Handler(e *engine.Engine, ready func() error) http.Handler {
	return shell.Handler(func(_ context.Context, r *http.Request) (shell.Page, error) {
		pods, total := e.Pending(maxPending)
		number, _ := strconv.Atoi(r.URL.Query().Get("page"))
		p := describe(e.State(r.URL.Query().Get("node")), pods, total, number, time.Now())
		if ready == nil {
			return p, nil
		}
		return p, ready()
	})
}

func describe(s engine.State, waiting []engine.Pending, total, number int, now time.Time) shell.Page {
	p := shell.Page{Title: "GPUs of the cluster", Legend: []shell.Key{{Kind: shell.Granted, Text: "granted"}}, Problems: problems(s.Problems)}
	var sum, of scheduler.Use
	gpus := 0
	for i := range s.Nodes {
		for j := range s.Nodes[i].GPUs {
			c := &s.Nodes[i].GPUs[j]
			gpus++
			sum, of = sum.Add(c.Used), of.Add(scheduler.Use{MemoryMiB: c.MemoryMiB, Cores: c.Cores, Replicas: c.Replicas})
		}
	}
	p.Lead = fmt.Sprintf("%s, %s, %s pending", shell.Count(len(s.Nodes), "node"), shell.Count(gpus, "GPU"), shell.Count(total, "pod"))
	if gpus > 0 {
		p.Sections = append(p.Sections, shell.Section{Title: "All GPUs", Tables: []shell.Table{{
			Caption: "Granted part of all GPUs", Columns: []string{"", "Memory", "Compute time", "Containers"},
			Rows: [][]shell.Cell{{{Text: "Granted"}, memory(sum, of), cores(sum, of), replicas(sum, of)}},
		}}})
	}
	p.Sections = append(p.Sections, pending(waiting, total, now))
	last := max(1, (len(s.Nodes)+nodesAPage-1)/nodesAPage)
	number = min(max(number, 1), last)
	from := (number - 1) * nodesAPage
	for _, n := range s.Nodes[from:min(from+nodesAPage, len(s.Nodes))] {
		p.Sections = append(p.Sections, node(n))
	}
	if last > 1 {
		p.Sections = append(p.Sections, pages(number, last))
	}
	return p
}

func problems(all []engine.Problem) (texts []string) {
	for i, p := range all {
		if i == maxProblems {
			return append(texts, fmt.Sprintf("and %d more: see /debug/state", len(all)-i))
		}
		subject := strings.Join(slices.DeleteFunc([]string{p.Node, p.Pod}, func(s string) bool { return s == "" }), " ")
		texts = append(texts, subject+": "+p.Text)
	}
	return texts
}

func pending(pods []engine.Pending, total int, now time.Time) shell.Section {
	s := shell.Section{Title: "Pending pods"}
	table := shell.Table{Caption: "Pending pods that request GPUs", Empty: "No pending pods request GPUs.", Columns: []string{"Pod", "Why"}}
	for _, p := range pods {
		why := shell.Cell{Text: p.Text}
		if p.Fragmented {
			why.Warning = "The memory is free, but not on one GPU: it is fragmented."
		}
		table.Rows = append(table.Rows, []shell.Cell{{Text: p.Pod, Notes: []string{"for " + age(now.Sub(p.Since)), p.Reason}}, why})
	}
	if total > len(pods) {
		s.Lead = fmt.Sprintf("The oldest %d of %d.", len(pods), total)
	}
	s.Tables = []shell.Table{table}
	return s
}

func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}

func node(n engine.NodeState) shell.Section {
	s := shell.Section{Title: n.Name, Links: []shell.Link{{Text: "only this node", Query: "?" + url.Values{"node": {n.Name}}.Encode()}}}
	if !n.Registered {
		s.Warning = "gone"
	}
	table := shell.Table{Caption: "GPUs of " + n.Name, Empty: "No GPUs are registered.", Columns: []string{"GPU", "Memory", "Compute time"}}
	for i := range n.GPUs {
		c := &n.GPUs[i]
		of := scheduler.Use{MemoryMiB: c.MemoryMiB, Cores: c.Cores, Replicas: c.Replicas}
		first := shell.Cell{Text: fmt.Sprintf("%d: %s", c.Index, c.Model),
			Notes: []string{c.UUID, fmt.Sprintf("%d of %d containers", c.Used.Replicas, c.Replicas)}}
		first.Warning = c.Condition()
		table.Rows = append(table.Rows, []shell.Cell{first, memory(c.Used, of), cores(c.Used, of)})
	}
	s.Tables = []shell.Table{table}
	if rows := podRows(n); len(rows) > 0 {
		s.Tables = append(s.Tables, shell.Table{Caption: "Pods on " + n.Name, Columns: []string{"Pod", "GPU", "Share"}, Rows: rows})
	}
	return s
}

// podRows are sorted like the GPUs in their table.
func podRows(n engine.NodeState) (rows [][]shell.Cell) {
	names, order := map[string]string{}, map[string]int{}
	for i := range n.GPUs {
		names[n.GPUs[i].UUID], order[n.GPUs[i].UUID] = fmt.Sprintf("%d: %s", n.GPUs[i].Index, n.GPUs[i].Model), i+1
	}
	type share struct {
		pod  *engine.PodState
		uuid string
		scheduler.Use
	}
	var all []share
	for i := range n.Pods {
		for _, shares := range n.Pods[i].Containers {
			for _, g := range shares {
				all = append(all, share{&n.Pods[i], g.UUID, scheduler.Use{MemoryMiB: g.MemoryMiB, Cores: g.CorePercent}})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b share) int {
		return cmp.Or(cmp.Compare(order[a.uuid], order[b.uuid]), cmp.Compare(a.uuid, b.uuid), cmp.Compare(a.pod.Pod, b.pod.Pod))
	})
	for _, a := range all {
		pod := shell.Cell{Text: a.pod.Pod}
		if a.pod.Phase != "bound" {
			pod.Notes = []string{a.pod.Phase + " by " + a.pod.Owner}
		}
		on := shell.Cell{Text: names[a.uuid]}
		if on.Text == "" {
			on = shell.Cell{Text: a.uuid, Warning: "not a GPU of this node"}
		}
		text := shell.GiB(float64(a.MemoryMiB) * mib)
		if a.Cores > 0 {
			text += fmt.Sprintf(", %d %% of compute time", a.Cores)
		}
		rows = append(rows, []shell.Cell{pod, on, {Text: text}})
	}
	return rows
}

const mib = 1 << 20

func memory(used, of scheduler.Use) shell.Cell {
	return amount(float64(used.MemoryMiB), float64(of.MemoryMiB),
		shell.GiB(float64(used.MemoryMiB)*mib)+" of "+shell.GiB(float64(of.MemoryMiB)*mib))
}

func cores(used, of scheduler.Use) shell.Cell {
	return amount(float64(used.Cores), float64(of.Cores), fmt.Sprintf("%d of %d %%", used.Cores, of.Cores))
}

func replicas(used, of scheduler.Use) shell.Cell {
	return amount(float64(used.Replicas), float64(of.Replicas), fmt.Sprintf("%d of %d", used.Replicas, of.Replicas))
}

func amount(value, of float64, text string) shell.Cell {
	c := shell.Cell{Text: text, Bars: []shell.Bar{{Of: of, Parts: []shell.Part{{Kind: shell.Granted, Value: value}}}}}
	if value > of {
		c.Warning = "overcommitted"
	}
	return c
}

func pages(number, last int) shell.Section {
	s := shell.Section{Title: fmt.Sprintf("Page %d of %d", number, last)}
	if number > 1 {
		s.Links = append(s.Links, shell.Link{Text: "previous nodes", Query: fmt.Sprintf("?page=%d", number-1)})
	}
	if number < last {
		s.Links = append(s.Links, shell.Link{Text: "next nodes", Query: fmt.Sprintf("?page=%d", number+1)})
	}
	return s
}
