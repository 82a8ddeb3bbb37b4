package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
)

// The forms of --output.
const (
	formTable = "table"
	formWide  = "wide"
	formJSON  = "json"
	formYAML  = "yaml"
)

// page is where a table is written: a writer, and what its reader can be shown.
type page struct {
	io.Writer
	term.Style
	// Wide says that more is wanted (-o wide). Nothing is cut then.
	Wide bool
}

// table starts a table of the page's style.
func (p page) table(columns ...term.Column) *term.Table {
	return &term.Table{Style: p.Style, Columns: columns}
}

// output is the flag --output of a command.
type output struct{ choice }

// outputFlag gives a command --output, with the forms that it knows; the first is the
// one that nobody need ask for.
func outputFlag(c *cobra.Command, forms ...string) *output {
	o := &output{choice{value: forms[0], of: forms}}
	c.Flags().VarP(o, "output", "o", "`form` of the output: "+oneOf(forms))
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	return o
}

// forPrograms says that a form is one that programs read.
func (o *output) forPrograms() bool { return o.value == formJSON || o.value == formYAML }

// print prints a value in the form that was asked for: table writes it for people.
func (o *output) print(c *cobra.Command, value any, table func(page) error) error {
	return printAs(c, o.value, value, table)
}

// printAs prints a value in a form. Field names are those of its JSON in YAML, too.
func printAs(c *cobra.Command, form string, value any, table func(page) error) error {
	w := c.OutOrStdout()
	switch form {
	case formJSON:
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false) // commands hold > and &&
		return encoder.Encode(value)
	case formYAML:
		data, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}
	p := page{Writer: w, Style: styleOf(c), Wide: form == formWide}
	if p.Wide {
		p.Columns = 0
	}
	return table(p)
}

// styleOf is the style of what a command prints, by --color and the terminal.
func styleOf(c *cobra.Command) term.Style {
	when := term.Auto
	if f := c.Flags().Lookup("color"); f != nil {
		when = term.When(f.Value.String())
	}
	return term.StyleOf(c.OutOrStdout(), when, os.Getenv)
}

// colorFlag gives a command, and those below it, --color.
func colorFlag(c *cobra.Command) {
	when := []string{string(term.Auto), string(term.Always), string(term.Never)}
	c.PersistentFlags().Var(&choice{value: when[0], of: when}, "color",
		"`when` to print colours: auto (on a terminal, without NO_COLOR), always or never")
	_ = c.RegisterFlagCompletionFunc("color", cobra.FixedCompletions(when, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// choice is a flag's value that is one of several words.
type choice struct {
	value string
	of    []string
}

func (c *choice) String() string { return c.value }

// Type implements pflag.Value: the manual writes such defaults in quotes.
func (c *choice) Type() string { return "string" }

func (c *choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		return fmt.Errorf("want %s, not %q", oneOf(c.of), text)
	}
	c.value = text
	return nil
}

// oneOf lists words: "a, b or c".
func oneOf(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
