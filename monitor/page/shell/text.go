package shell

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxText is how much of one text is shown, in runes: names have at most 253.
const maxText = 1000

// Plain is a stranger's text as it can be shown: what is not seen, or changes how what
// comes after it is seen (control characters, the direction of writing), is written out.
func Plain(s string) string {
	var out strings.Builder
	count := 0
	for i, r := range s {
		if count++; count > maxText {
			return out.String() + "…"
		}
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&out, `\x%02x`, s[i])
		case r == ' ', unicode.IsGraphic(r) && !unicode.Is(unicode.Zs, r):
			out.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&out, `\U%08x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// GiB is an amount of memory for people: always in GiB, so that rows compare.
func GiB(bytes float64) string {
	gib := bytes / (1 << 30)
	switch {
	case gib <= 0:
		return "0 GiB"
	case gib < 0.01:
		return "< 0.01 GiB"
	case gib < 10:
		return fmt.Sprintf("%.2f GiB", gib)
	case gib < 1e6:
		return fmt.Sprintf("%.1f GiB", gib)
	}
	return "> 1000000 GiB" // nobody has that: it is what a tenant says of himself
}

// Count is a number of things in words: "1 GPU", "2 GPUs".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
