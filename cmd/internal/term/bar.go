package term

import "strings"

// Bar is a part of a whole, drawn over so many cells beside a label:
//
//	[||||||||||||||          29.3/40.0G]
//
// The strokes have the cells that the label leaves; a part that is not none has one at
// least. Where there is no room for any there is the label alone.
func (s Style) Bar(columns int, part float64, label string) string {
	room := columns - 2
	if label != "" {
		room -= Width(label) + 1
	}
	if room < 1 {
		return s.Paint(Heat(part), pad(Cut(label, columns), columns, true))
	}
	strokes := 0
	if part > 0 { // also false of what isn't a number
		strokes = min(max(int(min(part, 1)*float64(room)+0.5), 1), room)
	}
	fill := columns - 2 - strokes - Width(label)
	return "[" + s.Paint(Heat(part), strings.Repeat("|", strokes)) + strings.Repeat(" ", fill) + label + "]"
}
