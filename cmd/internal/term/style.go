// Package term is how the CLI writes for people: tables, bars and colours that fit
// the terminal they are written to, plain text where there is none, and a full screen
// that is drawn again and again ([Screen]).
//
// A [Style] says what the reader's terminal can do; everything else follows it. What
// is written passes [Clean]: a name that a tenant chose moves no cursor.
package term

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// When says when there are colours.
type When string

// The values of --color.
const (
	Auto   When = "auto"
	Always When = "always"
	Never  When = "never"
)

// Style is what a reader can be shown. The zero value is plain text of any width.
type Style struct {
	// Colors says that there are colours and bold letters.
	Colors bool
	// Columns is the width of the terminal in cells; 0: there is none, or it doesn't
	// say, and nothing is cut.
	Columns int
}

// StyleOf is the style of a writer. With [Auto] there are colours on a terminal, but
// not where NO_COLOR is set (no-color.org) or TERM is "dumb"; [Always] and [Never] win
// over both.
func StyleOf(w io.Writer, when When, getenv func(string) string) Style {
	columns, isTerminal := size(w)
	s := Style{Columns: columns}
	switch when {
	case Always:
		s.Colors = true
	case Never:
	default:
		s.Colors = isTerminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
	}
	return s
}

// CanDraw says whether a writer is a terminal that a [Screen] can be drawn on.
func CanDraw(w io.Writer, getenv func(string) string) bool {
	_, isTerminal := size(w)
	return isTerminal && getenv("TERM") != "" && getenv("TERM") != "dumb"
}

// size is a terminal's width; 0 where it doesn't say.
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

// Color is one of the terminal's own colours, or how bright a letter is.
type Color int

// The colours; the zero value is the terminal's usual one. Numbers are ECMA-48's (SGR).
const (
	Plain  Color = 0
	Bold   Color = 1
	Faint  Color = 2
	Invert Color = 7
	Red    Color = 31
	Green  Color = 32
	Yellow Color = 33
	Cyan   Color = 36
)

// Paint gives text a colour, if the style has any.
func (s Style) Paint(c Color, text string) string {
	if !s.Colors || c == Plain || text == "" {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", int(c), text)
}

// Heat is the colour of a part that is in use: from Green to Red the fuller it is.
func Heat(part float64) Color {
	switch {
	case part >= 0.9:
		return Red
	case part >= 0.7:
		return Yellow
	}
	return Green
}
