package term

import (
	"fmt"
	"io"
	"strings"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	"github.com/charmbracelet/x/ansi"
)

// gap is the space between two columns.
const gap = 2

type Column struct {
	Head  string
	Right bool // aligned to the right
	// Min is the width down to which a narrow terminal cuts the column; 0: it is never cut.
	Min int
	// Bar is the width of the column's bars.
	Bar int
}

// Cell is a text with a color, or a bar with the text as its label.
type Cell struct {
	Text  string
	Color Color
	Bar   bool
	Part  float64
}

// Table is rows below headers. On a narrow terminal the widest column with a Min is cut first.
type Table struct {
	Style
	Columns []Column
	// Selected is the number of the highlighted row, from 1; 0: none.
	Selected int
	Empty    string // the only row of a table without rows
	rows     [][]Cell
}

// Row adds a row of texts, [Cell]s or other values.
func (t *Table) Row(values ...any) {
	row := make([]Cell, len(values))
	for i, v := range values {
		cell, is := v.(Cell)
		if !is {
			cell.Text = fmt.Sprint(v)
		}
		cell.Text = Clean(cell.Text)
		row[i] = cell
	}
	t.rows = append(t.rows, row)
}

func (t *Table) Write(w io.Writer) error {
	_, err := io.WriteString(w, strings.Join(t.Lines(), "\n")+"\n")
	return err
}

func (t *Table) Lines() []string {
	if len(t.rows) == 0 && t.Empty != "" {
		t.Row(t.Empty)
	}
	widths := t.widths()
	grid := table.New().BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).BorderHeader(false).BorderColumn(false).
		StyleFunc(func(_, column int) lipgloss.Style {
			style := lipgloss.NewStyle().Width(widths[column] + gap).PaddingRight(gap)
			if t.Columns[column].Right {
				style = style.Align(lipgloss.Right)
			}
			return style
		})
	heads := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		heads[i] = t.Paint(Bold, c.Head)
	}
	grid.Headers(heads...)
	for i, row := range t.rows {
		style := t.Style
		style.Colors = t.Colors && i+1 != t.Selected
		texts := make([]string, len(row))
		for j, c := range row {
			if texts[j] = style.Paint(c.Color, CutMiddle(c.Text, widths[j])); c.Bar {
				texts[j] = style.Bar(widths[j], c.Part, c.Text)
			}
		}
		grid.Row(texts...)
	}
	lines := strings.Split(grid.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
		if t.Selected > 0 && i == t.Selected {
			fill := strings.Repeat(" ", max(t.Style.Columns-ansi.StringWidth(lines[i]), 0))
			lines[i] = Style{Colors: true}.Paint(Invert, lines[i]+fill)
		}
	}
	return lines
}

func (t *Table) widths() []int {
	widths := make([]int, len(t.Columns))
	total := gap * (len(widths) - 1)
	for i, c := range t.Columns {
		widths[i] = ansi.StringWidth(c.Head)
		for _, row := range t.rows {
			switch {
			case i >= len(row):
			case row[i].Bar:
				widths[i] = max(widths[i], c.Bar)
			default:
				widths[i] = max(widths[i], ansi.StringWidth(row[i].Text))
			}
		}
		total += widths[i]
	}
	for ; t.Style.Columns > 0 && total > t.Style.Columns; total-- {
		widest := -1
		for i, c := range t.Columns {
			if c.Min > 0 && widths[i] > max(c.Min, ansi.StringWidth(c.Head)) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break // the terminal wraps the lines
		}
		widths[widest]--
	}
	return widths
}
