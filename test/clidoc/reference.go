// Package clidoc writes what is generated from the commands' flags: the Markdown reference, the schema of the file of options, and
// man pages. Tests of the commands call it.
package clidoc

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// Man writes man pages of a command and its subcommands (section 8) to a directory; empty: a temporary one. The date is that of
// SOURCE_DATE_EPOCH, or today. It checks that each page has all options.
func Man(t *testing.T, c *cobra.Command, dir string) {
	if dir == "" {
		dir = t.TempDir()
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	c.DisableAutoGenTag = true
	require.NoError(t, doc.GenManTree(c, &doc.GenManHeader{Section: "8", Source: "gpuslice", Manual: "gpuslice"}, dir))
	check(t, c, dir, c.Name())
}

func check(t *testing.T, c *cobra.Command, dir, name string) {
	page, err := os.ReadFile(filepath.Join(dir, name+".8"))
	require.NoError(t, err)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if isOption(f) && !f.Hidden {
			assert.Contains(t, string(page), "--"+f.Name, name)
		}
	})
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			check(t, sub, dir, name+"-"+sub.Name())
		}
	}
}

// Schema is the JSON Schema (draft 2020-12) of the YAML file, for flags with their defaults. limits adds ranges and enumerations.
func Schema(flags *pflag.FlagSet, title string, limits map[string]map[string]any) map[string]any {
	properties := map[string]any{}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "config" || !isOption(f) {
			return
		}
		_, text := pflag.UnquoteUsage(f)
		property := map[string]any{"description": text}
		maps.Copy(property, typeOf(f))
		maps.Copy(property, limits[f.Name])
		properties[f.Name] = property
	})
	return map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title,
		"type": "object", "additionalProperties": false, "properties": properties,
	}
}

// typeOf is the schema of a flag's type and default.
func typeOf(f *pflag.Flag) map[string]any {
	switch f.Value.Type() {
	case "bool":
		return map[string]any{"type": "boolean", "default": f.DefValue == "true"}
	case "int":
		n, _ := strconv.Atoi(f.DefValue)
		return map[string]any{"type": "integer", "default": n}
	case "float64":
		x, _ := strconv.ParseFloat(f.DefValue, 64)
		return map[string]any{"type": "number", "default": x}
	case "stringSlice":
		return map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "default": append([]string{}, f.Value.(pflag.SliceValue).GetSlice()...)}
	case "uintSlice":
		return map[string]any{"type": "array", "items": map[string]any{"type": "integer", "minimum": 0}, "default": append([]string{}, f.Value.(pflag.SliceValue).GetSlice()...)}
	default: // also a duration
		return map[string]any{"type": "string", "default": f.DefValue}
	}
}
