package term

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

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
