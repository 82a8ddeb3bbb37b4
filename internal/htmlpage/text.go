package htmlpage

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const maxText = 1000

// Plain escapes invisible characters, and those that change the display of other text.
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

// GiB formats memory: always in GiB, so that rows are comparable.
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
	return "> 1000000 GiB" // written by a tenant
}

// Count formats a number of things: "1 GPU", "2 GPUs".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
