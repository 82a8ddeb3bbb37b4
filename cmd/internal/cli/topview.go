package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
)

// Widths of bars, in cells.
const (
	barNarrow = 16
	barUsual  = 24
	barWide   = 36
)

func (m *topModel) page(s term.Style, width, rows int) []string {
	s.Columns = width
	if m.help {
		return m.helpPage(s, rows)
	}
	lines := []string{m.title(s)}
	lines = append(lines, topGPUs(s, m.shown.GPUs, max(rows/3, 1))...)
	lines = append(lines, "")
	body := m.bodyRows(rows)
	all := m.rows()
	m.scroll(all, body)
	columns := topColumnsOf(s, m.wide, all)
	t := topTable(s, columns, m.by)
	part := all[m.first:min(m.first+body, len(all))]
	for _, r := range part {
		addTopRow(t, columns, r)
	}
	t.Selected = m.at(part) + 1
	lines = append(lines, t.Lines()...)
	for len(lines) < rows-1 {
		lines = append(lines, "")
	}
	return append(lines[:max(min(len(lines), rows-1), 0)], m.footer(s, len(all)))
}

// bodyRows is the number of rows between the headers and the last line.
func (m *topModel) bodyRows(rows int) int {
	gpus := len(topGPUs(term.Style{Columns: 80}, m.shown.GPUs, max(rows/3, 1)))
	return max(rows-gpus-4, 1)
}

func (m *topModel) title(s term.Style) string {
	count := len(m.shown.Containers)
	text := fmt.Sprintf("top of %s  %s  every %s  %d of %d shares  by %s", cmp.Or(m.shown.Node, "-"),
		m.shown.TakenAt.Format("15:04:05 MST"), m.interval, len(m.rows()), count, m.by)
	if m.reverse {
		text += " (reverse)"
	}
	if m.paused {
		text += "  paused"
	}
	text = ansi.Truncate(term.Clean(text), s.Columns, "…")
	return s.Paint(term.Bold, text)
}

func (m *topModel) footer(s term.Style, rows int) string {
	switch {
	case m.isTyping:
		return ansi.Truncate("filter: "+m.filter+"_  (Enter: keep, Escape: cancel)", s.Columns, "…")
	case m.failure != "":
		return s.Paint(term.Red, ansi.Truncate(term.Clean("problem: "+m.failure), s.Columns, "…"))
	case m.filter != "":
		return ansi.Truncate(fmt.Sprintf("filter: %s  (%d rows; Escape: remove)", m.filter, rows), s.Columns, "…")
	case len(m.shown.problems()) > 0:
		all, more := m.shown.problems(), ""
		if n := len(all) - 1; n > 0 {
			more = fmt.Sprintf("(and %d more: gpuslice top --once) ", n)
		}
		return s.Paint(term.Red, ansi.Truncate(term.Clean("problem: "+more+all[0]), s.Columns, "…"))
	}
	return ansi.Truncate("q quit  s sort  r reverse  / filter  arrows select  p pause  w wide  h help", s.Columns, "…")
}

const topHelp = `The keys of gpuslice top

  q, Ctrl-C       quit
  s               sort by the next key: memory, cores, waited, pod, gpu
  M C W N G       sort by memory, cores, waited, pod, gpu
  r               reverse the order
  /               filter: type a part of a pod's, container's or GPU's name
  Escape          remove the filter and the selection
  arrows, Page Up, Page Down, Home, End   select a row
  p, space        pause: keep the last reading
  w               more columns, or fewer
  Ctrl-Z          suspend

MEMORY is what the container accounts for, of what it is granted. CORES is the
part of the GPU's time that was charged to it since the last reading, of its
limit, or its use by NVML (with an agent, --all-nodes); WAITED the part in which
launches waited for it. "-" is not known: the share has no limit, no limit is
enforced now (no other container uses the GPU), or there is only one reading.
With an agent a GPU's numbers are NVML's, of all programs, and OUTSIDE is the
memory that programs use without a share or beyond it.

Any key goes back.`

func (m *topModel) helpPage(s term.Style, rows int) []string {
	lines := strings.Split(topHelp, "\n")
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], s.Columns, "…")
	}
	return lines[:min(len(lines), rows)]
}

func topGPUs(s term.Style, gpus []topGPU, most int) []string {
	bar := barUsual
	switch {
	case s.Columns == 0:
	case s.Columns < 90:
		bar = barNarrow
	case s.Columns >= 130:
		bar = barWide
	}
	t := &term.Table{Style: s, Columns: []term.Column{
		{Head: "GPU"}, {Head: "MODEL", Min: 6}, {Head: "MEMORY USED", Bar: bar}, {Head: "CORES USED", Bar: bar},
		{Head: "GRANTED", Min: 8},
	}}
	measured := slices.ContainsFunc(gpus, func(c topGPU) bool { return c.OutsideBytes != nil })
	if measured {
		t.Columns = append(t.Columns, term.Column{Head: "OUTSIDE", Right: true})
	}
	shown := gpus
	if len(gpus)+1 > most && most > 1 {
		shown = busiest(gpus, max(most-2, 0))
	}
	for _, c := range shown {
		row := []any{
			label(c.GPU), modelCell(c.GPU), memoryCell(c.memoryUsed(), c.MemoryMiB, c.UseUnknown),
			coresCell(c), fmt.Sprintf("%s %d%% %d/%d", megabytes(c.GrantedMemoryMiB), c.GrantedCores, c.GrantedContainers, c.GrantableReplicas),
		}
		if c.GrantsUnknown {
			row[len(row)-1] = fmt.Sprintf("- -/%d", c.GrantableReplicas)
		}
		if measured {
			row = append(row, outsideCell(c))
		}
		t.Row(row...)
	}
	if len(gpus) == 0 {
		t.Row("(no GPUs)")
	}
	lines := t.Lines()
	if n := len(gpus) - len(shown); n > 0 {
		lines = append(lines, fmt.Sprintf("(and %d more)", n))
	}
	return lines
}

func outsideCell(c topGPU) term.Cell {
	if c.OutsideBytes == nil {
		return term.Cell{Text: "-"}
	}
	cell := term.Cell{Text: term.Bytes(*c.OutsideBytes)}
	if *c.OutsideBytes >= 1<<30 { // less can be a process that starts or ends
		cell.Color = term.Yellow
	}
	return cell
}

func busiest(gpus []topGPU, n int) []topGPU {
	sorted := slices.Clone(gpus)
	slices.SortStableFunc(sorted, func(a, b topGPU) int { return cmp.Compare(b.GrantedContainers, a.GrantedContainers) })
	in := map[string]bool{}
	for _, c := range sorted[:n] {
		in[c.UUID] = true
	}
	return slices.DeleteFunc(slices.Clone(gpus), func(c topGPU) bool { return !in[c.UUID] })
}

type topColumns struct{ narrow, wide, mig bool }

func topColumnsOf(s term.Style, wide bool, rows []topRow) topColumns {
	mig := slices.ContainsFunc(rows, func(r topRow) bool { return len(r.GPU) > len("GPU▾") })
	return topColumns{narrow: s.Columns > 0 && s.Columns < 100, wide: wide, mig: mig}
}

func topTable(s term.Style, o topColumns, by string) *term.Table {
	bar := barUsual
	switch {
	case o.narrow && o.mig:
		bar = barNarrow - 3 // the labels of MIG devices are longer
	case o.narrow:
		bar = barNarrow
	case s.Columns > 0 && s.Columns < 130:
		bar = barNarrow + 2
	case s.Columns >= 150 && !o.wide:
		bar = barWide
	}
	t := &term.Table{Style: s, Empty: "(none)", Columns: []term.Column{
		{Head: "POD", Min: 8}, {Head: "CONTAINER", Min: 9}, {Head: "GPU"}, {Head: "MEMORY", Bar: bar},
		{Head: "CORES", Bar: bar}, {Head: "WAITED", Right: true},
	}}
	if !o.narrow {
		t.Columns = append(t.Columns, term.Column{Head: "PROC", Right: true})
	}
	t.Columns = append(t.Columns, term.Column{Head: "STATE"})
	if o.wide {
		t.Columns = append(t.Columns, term.Column{Head: "LAUNCHES/S", Right: true}, term.Column{Head: "ENFORCEMENT"},
			term.Column{Head: "CONTAINER ID", Min: 12})
	}
	for i := range t.Columns {
		if strings.EqualFold(t.Columns[i].Head, by) {
			t.Columns[i].Head += "▾"
		}
	}
	return t
}

func addTopRow(t *term.Table, o topColumns, r topRow) {
	memory, processes := memoryCell(r.UsedBytes, r.MemoryMiB, r.UseUnknown), unless(r.UseUnknown, "%d", r.Processes)
	if r.UUID == "" {
		memory = term.Cell{Text: "-"}
	}
	state := term.Cell{Text: r.State, Color: stateColor(r.State)}
	if r.UsageProblem != "" {
		memory, state.Color = term.Cell{Text: "unreadable", Color: term.Red}, term.Red
	}
	row := []any{cmp.Or(r.Pod, "-"), r.Container, r.GPU, memory, percentCell(r.CoresUsedPercent, r.Cores), percentText(r.WaitedPercent)}
	if !o.narrow {
		row = append(row, processes)
	}
	row = append(row, state)
	if o.wide {
		launches := "-"
		if r.LaunchesPerSec != nil {
			launches = fmt.Sprintf("%.0f", *r.LaunchesPerSec)
		}
		row = append(row, launches, cmp.Or(r.Enforcement, "-"), cmp.Or(r.ContainerID, "-"))
	}
	t.Row(row...)
}

func memoryCell(bytes uint64, ofMiB int64, unknown bool) term.Cell {
	if unknown {
		return term.Cell{Bar: true, Text: "-/" + megabytes(ofMiB)}
	}
	cell := term.Cell{Bar: true, Text: term.Bytes(bytes) + "/" + megabytes(ofMiB)}
	if ofMiB > 0 {
		cell.Part = float64(bytes) / float64(1<<20) / float64(ofMiB)
	}
	return cell
}

func megabytes(mib int64) string { return term.Bytes(uint64(max(mib, 0)) << 20) }

func percentCell(percent *float64, limit int) term.Cell {
	switch {
	case percent == nil && limit == 0:
		return term.Cell{Text: "-"}
	case percent == nil:
		return term.Cell{Bar: true, Text: fmt.Sprintf("-/%d%%", limit)}
	}
	if limit == 0 { // the whole GPU
		limit = 100
	}
	return term.Cell{Bar: true, Part: *percent / float64(limit), Text: fmt.Sprintf("%.0f/%d%%", *percent, limit)}
}

// coresCell is the use of a GPU, or the least that it can be.
func coresCell(c topGPU) term.Cell {
	cell := percentCell(c.CoresUsedPercent, 100)
	if least := c.CoresUsedAtLeastPercent; least != nil && *least > 0 {
		cell = percentCell(least, 100)
		cell.Text = "≥" + cell.Text
	}
	return cell
}

func percentText(percent *float64) string {
	if percent == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", *percent)
}
