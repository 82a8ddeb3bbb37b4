package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

const usageWidth = 80

// Usage describes flags in a command's help: text, variables and default.
func Usage(flags *pflag.FlagSet, aliases Aliases) string {
	var paragraphs []string
	flags.VisitAll(func(f *pflag.Flag) {
		if notAnOption(f.Name) || f.Hidden {
			return
		}
		kind, text := pflag.UnquoteUsage(f)
		head := "--" + f.Name
		if f.Shorthand != "" {
			head = "-" + f.Shorthand + ", " + head
		}
		if kind != "" {
			head += " " + kind
		}
		source := strings.Join(append([]string{EnvName(f.Name)}, aliases[f.Name]...), " or ")
		if d := defaultText(f); d != "" {
			source += "; default " + d
		}
		paragraphs = append(paragraphs, "  "+head+"\n"+wrap(text)+wrap("("+source+")"))
	})
	return strings.Join(paragraphs, "\n")
}

func defaultText(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "[]", "false":
		return ""
	}
	if f.Value.Type() == "string" {
		return fmt.Sprintf("%q", f.DefValue)
	}
	return strings.Trim(f.DefValue, "[]")
}

func wrap(text string) string {
	const indent = "       "
	var b strings.Builder
	width := 0
	for _, word := range strings.Fields(text) {
		if width > 0 && width+1+len(word) > usageWidth {
			b.WriteByte('\n')
			width = 0
		}
		if width == 0 {
			b.WriteString(indent)
			width = len(indent)
		}
		b.WriteString(" " + word)
		width += 1 + len(word)
	}
	return b.String() + "\n"
}
