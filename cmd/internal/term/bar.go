package term

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Bar draws a fraction and its label in the given number of cells; in a few cells only the label:
//
//	[||||||||||||||          29.3/40.0G]
func (s Style) Bar(columns int, part float64, label string) string {
	space := columns - 2
	if label != "" {
		space -= ansi.StringWidth(label) + 1
	}
	if space < 1 {
		text := ansi.Truncate(label, columns, "…")
		return s.Paint(Heat(part), strings.Repeat(" ", columns-ansi.StringWidth(text))+text)
	}
	strokes := 0
	if part > 0 { // false for NaN too
		strokes = min(max(int(min(part, 1)*float64(space)+0.5), 1), space)
	}
	fill := columns - 2 - strokes - ansi.StringWidth(label)
	return "[" + s.Paint(Heat(part), strings.Repeat("|", strokes)) + strings.Repeat(" ", fill) + label + "]"
}
