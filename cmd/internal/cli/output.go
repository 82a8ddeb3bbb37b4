package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// Formats of --output. Table and wide are for people, the others are those of kubectl.
const (
	formTable = "table"
	formWide  = "wide"
	formName  = "name"
)

type page struct {
	io.Writer
	term.Style
	// Wide adds columns, and nothing is cut (-o wide).
	Wide bool
}

func (p page) table(columns ...term.Column) *term.Table {
	return &term.Table{Style: p.Style, Columns: columns}
}

func columns(heads ...string) []term.Column {
	all := make([]term.Column, len(heads))
	for i, head := range heads {
		all[i].Head = head
	}
	return all
}

type output struct {
	form    string
	printer printers.ResourcePrinter // nil for tables and names
}

// outputFlag adds --output with kubectl's formats. The formats for people are given, the default first; names
// enables -o name.
func outputFlag(c *cobra.Command, node local, names bool, tables ...string) *output {
	o := &output{form: tables[0]}
	forms := append(tables, "json", "yaml", "jsonpath")
	if node != nil {
		forms = append(forms, "go-template")
	}
	if names {
		forms = append(forms, formName)
	}
	c.Flags().StringVarP(&o.form, "output", "o", o.form, "Print as `FORMAT`: "+oneOf(forms)+". A template follows after =.")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	c.PreRunE = func(*cobra.Command, []string) error {
		form, template, _ := strings.Cut(o.form, "=")
		if !slices.Contains(forms, form) {
			return fmt.Errorf("--output: unknown format %q: use %s", o.form, oneOf(forms))
		}
		var err error
		switch form {
		case "json":
			o.printer = &printers.JSONPrinter{}
		case "yaml":
			o.printer = &printers.YAMLPrinter{}
		case "jsonpath":
			o.printer, err = printers.NewJSONPathPrinter(template)
		case "go-template":
			o.printer, err = node.template(template)
		}
		if err != nil {
			return fmt.Errorf("--output: %w: correct the template", err)
		}
		return nil
	}
	return o
}

func (o *output) forPrograms() bool { return o.printer != nil || o.form == formName }

// print prints a value to the command's output: by table for people. With -o name it prints names, each "kind/name".
func (o *output) print(c *cobra.Command, value any, names []string, table func(page) error) error {
	return o.printTo(c.OutOrStdout(), styleOf(c), value, names, table)
}

func (o *output) printTo(w io.Writer, style term.Style, value any, names []string, table func(page) error) error {
	if o.form == formName {
		for _, name := range names {
			if _, err := fmt.Fprintln(w, term.Clean(name)); err != nil {
				return err
			}
		}
		return nil
	}
	if o.printer == nil {
		p := page{Writer: w, Style: style, Wide: o.form == formWide}
		if p.Wide {
			p.Columns = 0
		}
		return table(p)
	}
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false) // commands contain > and &&
	if err := encoder.Encode(value); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := o.printer.PrintObj(&runtime.Unknown{Raw: bytes.TrimSpace(data.Bytes()), ContentType: runtime.ContentTypeJSON}, &out); err != nil {
		return fmt.Errorf("print as %s: %w: correct the format or the template", o.form, err)
	}
	text := out.String()
	if strings.Contains(o.form, "=") { // a template prints names unquoted
		text = term.CleanLines(text)
	}
	_, err := io.WriteString(w, text)
	return err
}

func namesOf(n view.Node) []string {
	var names []string
	for _, gpu := range n.GPUs {
		names = append(names, "gpu/"+gpu.UUID)
	}
	for _, c := range n.Containers {
		names = append(names, nameOf(c))
	}
	return slices.Compact(names)
}

// nameOf is the pod's where only that is known.
func nameOf(c view.Container) string {
	if c.ContainerID == "" {
		_, pod, _ := strings.Cut(c.Pod, "/")
		return "pod/" + pod
	}
	return "container/" + c.ContainerID
}

const watchInterval = 2 * time.Second

// watch calls generate until ctx ends, and prints changed output.
func watch(ctx context.Context, interval time.Duration, generate func(context.Context, io.Writer) error, out, errs io.Writer) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last := ""
	for {
		var now strings.Builder
		err := generate(ctx, &now)
		if ctx.Err() != nil {
			return nil
		}
		to := out
		if err != nil {
			fmt.Fprintf(&now, "gpuslice: %s\n", term.CleanLines(err.Error()))
			to = errs
		}
		if text := now.String(); text != last {
			last = text
			if _, err := io.WriteString(to, text); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// styleOf returns the style of a command's output, by --color and the terminal.
func styleOf(c *cobra.Command) term.Style {
	return term.StyleOf(c.OutOrStdout(), term.When(c.Flags().Lookup("color").Value.String()), os.Getenv)
}

// choiceFlag adds a flag that accepts one of several words; the first is the default. WORDS in usage stands for them.
func choiceFlag(c *cobra.Command, persistent bool, name, usage string, words ...string) *choice {
	flags, value := c.Flags(), &choice{value: words[0], of: words}
	if persistent {
		flags = c.PersistentFlags()
	}
	flags.Var(value, name, strings.ReplaceAll(usage, "WORDS", oneOf(words)))
	_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return value
}

type choice struct {
	value string
	of    []string
}

func (c *choice) String() string { return c.value }

// Type implements pflag.Value. The help prints the default of a string in quotes.
func (c *choice) Type() string { return "string" }

// Set implements pflag.Value.
func (c *choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		return fmt.Errorf("unknown value %q: use %s", text, oneOf(c.of))
	}
	c.value = text
	return nil
}

func oneOf(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
