// Package term formats what the CLI prints: tables, bars and colors that fit the terminal, and plain text
// without one. [StyleOf] finds out what the writer supports. Names that tenants choose pass [Clean], so that no
// control character reaches the terminal.
package term

import (
	"fmt"
	"io"
	"os"

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
