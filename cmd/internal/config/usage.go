package config

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"
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
	const indent = "        "
	return indent + strings.ReplaceAll(ansi.Wordwrap(text, usageWidth-len(indent), ""), "\n", "\n"+indent) + "\n"
}
