// Package clidoc writes what is generated from the commands' flags: the Markdown reference, the schema of the file of options, and
// man pages. Tests of the commands call it.
package clidoc

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Reference is the Markdown reference of a command and its subcommands. head is the page's start. aliases are further variables
// of flags.
func Reference(c *cobra.Command, head string, aliases map[string][]string) string {
	var b strings.Builder
	b.WriteString("<!-- Generated from the code by `make generate`. -->\n" + head)
	section(&b, c, 2, aliases)
	return b.String()
}

func section(b *strings.Builder, c *cobra.Command, level int, aliases map[string][]string) {
	fmt.Fprintf(b, "\n%s `%s`\n\n%s.\n", strings.Repeat("#", level), c.CommandPath(), strings.TrimSuffix(c.Short, "."))
	if c.Runnable() && c.HasParent() {
		fmt.Fprintf(b, "\n```\n%s\n```\n", c.UseLine())
	}
	b.WriteString(optionTable(c.LocalNonPersistentFlags(), aliases))
	if common := optionTable(c.PersistentFlags(), aliases); common != "" {
		b.WriteString("\nOptions of this and of the commands below it:\n" + common)
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			section(b, sub, min(level+1, 4), aliases)
		}
	}
}

// optionTable has a row for each option; it is empty if there is none.
func optionTable(flags *pflag.FlagSet, aliases map[string][]string) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if !isOption(f) || f.Hidden {
			return
		}
		if b.Len() == 0 {
			b.WriteString("\n| option | default | what |\n|---|---|---|\n")
		}
		kind, text := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if kind != "" {
			name += " " + kind
		}
		for _, alias := range aliases[f.Name] {
			text += " (also the variable " + alias + ")"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", cell(name), defaultOf(f), cell(text))
	})
	return b.String()
}

func defaultOf(f *pflag.Flag) string {
	value := strings.Trim(f.DefValue, "[]")
	if value == "" || value == "false" {
		return ""
	}
	return "`" + cell(value) + "`"
}

func isOption(f *pflag.Flag) bool { return f.Name != "help" && f.Name != "version" }

func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text)
}
