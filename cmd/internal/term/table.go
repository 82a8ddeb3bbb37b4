package term

import (
	"fmt"
	"io"
	"strings"
)

// gap is between two columns.
const gap = 2

// Column is one of a [Table].
type Column struct {
	Head  string
	Right bool // numbers are
	// Min is how far the column may be cut on a narrow terminal, in cells; 0: not at all.
	Min int
	// Bar is the width of the column's bars.
	Bar int
}

// Cell is a text with a colour.
type Cell struct {
	Text  string
	Color Color
	// Bar makes it a bar of Part, with the text as its label.
	Bar  bool
	Part float64
}

// Table is rows under heads, as wide as what is in them. On a terminal it is made
// narrower where it must be, the widest column that may be cut first.
type Table struct {
	Style
	Columns []Column
	// Selected is a row that is to be seen at once, counted from 1; 0: none.
	Selected int
	rows     [][]Cell
}

// Row adds a row of texts, [Cell]s, or what [fmt.Sprint] makes of others.
func (t *Table) Row(values ...any) {
	row := make([]Cell, len(values))
	for i, v := range values {
		switch v := v.(type) {
		case Cell:
			row[i] = v
		case string:
			row[i] = Cell{Text: v}
		default:
			row[i] = Cell{Text: fmt.Sprint(v)}
		}
		row[i].Text = Clean(row[i].Text)
	}
	t.rows = append(t.rows, row)
}

// Len is the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Write writes the heads and the rows.
func (t *Table) Write(w io.Writer) error {
	_, err := io.WriteString(w, strings.Join(t.Lines(), "\n")+"\n")
	return err
}

// Lines are the heads and the rows as they are written.
func (t *Table) Lines() []string {
	widths := t.widths()
	heads := make([]Cell, len(t.Columns))
	for i, c := range t.Columns {
		heads[i] = Cell{Text: c.Head, Color: Bold}
	}
	lines := []string{t.line(heads, widths)}
	for i, row := range t.rows {
		if i+1 != t.Selected {
			lines = append(lines, t.line(row, widths))
			continue
		}
		plain := *t
		plain.Colors = false
		line := plain.line(row, widths)
		lines = append(lines, "\x1b[7m"+pad(line, t.Style.Columns, false)+"\x1b[0m")
	}
	return lines
}

// widths are the columns'.
func (t *Table) widths() []int {
	widths := make([]int, len(t.Columns))
	total := gap * (len(widths) - 1)
	for i, c := range t.Columns {
		widths[i] = Width(c.Head)
		for _, row := range t.rows {
			if i < len(row) {
				widths[i] = max(widths[i], c.width(row[i]))
			}
		}
		total += widths[i]
	}
	for t.Style.Columns > 0 && total > t.Style.Columns {
		widest := -1
		for i, c := range t.Columns {
			if c.Min > 0 && widths[i] > max(c.Min, Width(c.Head)) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break // the terminal itself breaks the lines
		}
		widths[widest]--
		total--
	}
	return widths
}

// width is what a cell of the column wants.
func (c Column) width(cell Cell) int {
	if cell.Bar {
		return c.Bar
	}
	return Width(cell.Text)
}

func (t *Table) line(cells []Cell, widths []int) string {
	var b strings.Builder
	for i, c := range cells {
		if i > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		if c.Bar {
			b.WriteString(t.Bar(widths[i], c.Part, c.Text))
			continue
		}
		text := CutMiddle(c.Text, max(widths[i], 1))
		fill := strings.Repeat(" ", max(widths[i]-Width(text), 0))
		if t.Columns[i].Right {
			b.WriteString(fill)
		}
		b.WriteString(t.Paint(c.Color, text))
		if !t.Columns[i].Right && i < len(cells)-1 {
			b.WriteString(fill)
		}
	}
	return strings.TrimRight(b.String(), " ")
}
