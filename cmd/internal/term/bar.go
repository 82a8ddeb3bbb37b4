package term

import "strings"

// Bar is a part of a whole, drawn over so many cells with a label at its right end:
//
//	[||||||||       30001/40960 MiB]
//
// A part that is not none has at least one stroke. The label wins over strokes. Below
// eight cells, or those that the label needs, there is no bar but the label.
func (s Style) Bar(columns int, part float64, label string) string {
	inner := columns - 2
	if inner < max(6, Width(label)) {
		return s.Paint(Heat(part), pad(Cut(label, columns), columns, true))
	}
	room := inner
	if label != "" {
		room = max(inner-Width(label)-1, 0)
	}
	strokes := 0
	if part > 0 { // also false of what isn't a number
		strokes = min(max(int(min(part, 1)*float64(inner)+0.5), 1), room)
	}
	line := s.Paint(Heat(part), strings.Repeat("|", strokes)) + strings.Repeat(" ", inner-strokes-Width(label)) + label
	return "[" + line + "]"
}
