package term

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Width is the number of cells that a clean text takes on a terminal.
func Width(text string) int {
	n := 0
	for _, r := range text {
		n += cells(r)
	}
	return n
}

func cells(r rune) int {
	switch {
	case r < 0x80:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Clean replaces what isn't to be seen: an escape sequence in a name must not reach
// the terminal.
func Clean(text string) string {
	if plainASCII(text) {
		return text
	}
	return strings.Map(func(r rune) rune {
		// Format characters turn the direction of text, or hide it.
		if r == utf8.RuneError || unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
			return '?'
		}
		return r
	}, text)
}

func plainASCII(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// Cut makes a clean text fit so many cells, with an ellipsis for what is left out.
func Cut(text string, columns int) string {
	if columns <= 0 {
		return ""
	}
	if Width(text) <= columns {
		return text
	}
	n := 0
	for i, r := range text {
		if n += cells(r); n > columns-1 {
			return text[:i] + "…"
		}
	}
	return text
}

// CutMiddle makes a clean text fit so many cells, with an ellipsis in its middle: what
// tells names apart is at their ends.
func CutMiddle(text string, columns int) string {
	if columns <= 0 {
		return ""
	}
	if Width(text) <= columns {
		return text
	}
	head := Cut(text, columns-columns/2) // with the ellipsis
	room := columns - Width(head)
	tail := len(text)
	for tail > 0 {
		r, size := utf8.DecodeLastRuneInString(text[:tail])
		if room -= cells(r); room < 0 {
			break
		}
		tail -= size
	}
	return head + text[tail:]
}

// Bytes writes a number of bytes in five cells at most: whole MiB, rounded up, for a
// byte too much must not look like none; from 10 GiB on in larger units.
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

// pad fills a text up to so many cells.
func pad(text string, columns int, right bool) string {
	fill := strings.Repeat(" ", max(columns-Width(text), 0))
	if right {
		return fill + text
	}
	return text + fill
}
