// Package term formats what the CLI prints: tables, bars and colors that fit the terminal, and plain text
// without one. [StyleOf] finds out what the writer supports. Names that tenants choose pass [Clean], so that no
// control character reaches the terminal.
package term

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"
)

// When is a value of --color.
type When string

const (
	Auto   When = "auto"
	Always When = "always"
	Never  When = "never"
)

// Style is what the writer supports. The zero value is plain text of any width.
type Style struct {
	Colors bool
	// Columns is the width of the terminal in cells. With 0 nothing is cut.
	Columns int
}

// StyleOf returns the style of a writer. [Auto] uses colors on a terminal, unless NO_COLOR is set (no-color.org)
// or TERM is "dumb".
func StyleOf(w io.Writer, when When, getenv func(string) string) Style {
	columns, isTerminal := size(w)
	auto := isTerminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
	return Style{Columns: columns, Colors: when == Always || when == Auto && auto}
}

// CanDraw reports whether the writer is a terminal for full-screen output.
func CanDraw(w io.Writer, getenv func(string) string) bool {
	_, isTerminal := size(w)
	return isTerminal && getenv("TERM") != "" && getenv("TERM") != "dumb"
}

// size returns the width of a terminal; 0 if it is not known.
func size(w io.Writer) (columns int, isTerminal bool) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, true
	}
	return columns, true
}

// Color is an SGR parameter (ECMA-48). The zero value changes nothing.
type Color int

// The colors and attributes in use.
const (
	Plain     Color = 0
	Bold      Color = 1
	Faint     Color = 2
	Underline Color = 4
	Invert    Color = 7
	Red       Color = 31
	Green     Color = 32
	Yellow    Color = 33
)

func (s Style) Paint(c Color, text string) string {
	if !s.Colors || c == Plain || text == "" {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", int(c), text)
}

// Heat is the color of a fraction in use, from Green to Red.
func Heat(part float64) Color {
	switch {
	case part >= 0.9:
		return Red
	case part >= 0.7:
		return Yellow
	}
	return Green
}

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

// Clean replaces control and format characters: escape sequences, and those that hide text or change its direction.
func Clean(text string) string { return strings.Map(cleanRune, text) }

// CleanLines is [Clean] for a text of several lines: it keeps newlines and tabs.
func CleanLines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return cleanRune(r)
	}, text)
}

func cleanRune(r rune) rune {
	if r == utf8.RuneError || unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
		return '?'
	}
	return r
}

// CutMiddle makes a clean text fit the given number of cells, with an ellipsis in the middle: names differ at their ends.
func CutMiddle(text string, columns int) string {
	width := ansi.StringWidth(text)
	if width <= columns {
		return text
	}
	head := ansi.Truncate(text, columns-columns/2, "…")
	tail := ansi.TruncateLeft(text, width-max(columns-ansi.StringWidth(head), 0), "")
	return ansi.Truncate(head+tail, columns, "") // the tail can be wider: it keeps combining characters
}

// Bytes formats a number of bytes in at most five cells: whole MiB, rounded up, and larger units from 10 GiB.
func Bytes(n uint64) string {
	const mib = 1 << 20
	if whole := n/mib + min(n%mib, 1); whole < 10<<10 {
		return fmt.Sprintf("%dM", whole)
	}
	units, value := "GTPE", float64(n)/(1<<30)
	for value >= 999.5 && len(units) > 1 {
		value /= 1 << 10
		units = units[1:]
	}
	if value >= 99.95 {
		return fmt.Sprintf("%.0f%c", value, units[0])
	}
	return fmt.Sprintf("%.1f%c", value, units[0])
}
