// Package config sets a program's flags from the command line, the environment and a YAML file, in this order of precedence.
// In daemons, the flag --nri-socket is GPUSLICE_NRI_SOCKET in the environment and nri-socket in the file.
package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix starts the name of every variable.
const EnvPrefix = "GPUSLICE_"

func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Variables returns the variables that set a flag, the one with the highest precedence first.
type Variables func(flag string) []string

// Aliases are further variables of flags, with less precedence: the names in manifests of other systems.
type Aliases map[string][]string

// OfDaemon: every flag has a variable, and its aliases.
func OfDaemon(aliases Aliases) Variables {
	return func(flag string) []string { return append([]string{EnvName(flag)}, aliases[flag]...) }
}

// OfCommand: only these flags have one. A person's shell has variables for containers too (GPUSLICE_MEMORY), which must not
// change what a command does.
func OfCommand(flags ...string) Variables {
	return func(flag string) []string {
		if slices.Contains(flags, flag) {
			return []string{EnvName(flag)}
		}
		return nil
	}
}

// notAnOption: GPUSLICE_VERSION in a container's environment must not print the version.
func notAnOption(flag string) bool { return flag == "help" || flag == "version" }

// Fill sets every flag that the command line did not set. file can be empty. It returns all errors, each with the value's source.
func Fill(flags *pflag.FlagSet, file string, variables Variables, lookupEnv func(string) (string, bool)) error {
	var errs []error
	values, err := readFile(flags, file)
	if err != nil {
		errs = append(errs, err)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || notAnOption(f.Name) {
			return
		}
		for _, name := range variables(f.Name) {
			if value, ok := lookupEnv(name); ok {
				if err := flags.Set(f.Name, value); err != nil {
					errs = append(errs, fmt.Errorf("variable %s: %w", name, Plain(nil, err)))
				}
				return
			}
		}
		if node, ok := values[f.Name]; ok {
			if err := set(flags, f, node); err != nil {
				errs = append(errs, fmt.Errorf("%s line %d: %w", file, node.Line, err))
			}
		}
	})
	return errors.Join(errs...)
}

func set(flags *pflag.FlagSet, f *pflag.Flag, node yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return Plain(nil, flags.Set(f.Name, node.Value))
	}
	slice, ok := f.Value.(pflag.SliceValue)
	var items []string
	if !ok || node.Kind != yaml.SequenceNode || node.Decode(&items) != nil {
		return fmt.Errorf("%s: the value must be a plain value, or for some options a list of plain values", f.Name)
	}
	f.Changed = true
	return slice.Replace(items)
}

func readFile(flags *pflag.FlagSet, path string) (map[string]yaml.Node, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	var values map[string]yaml.Node
	if err := yaml.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("--config %s: %w", path, err)
	}
	var errs []error
	for name, node := range values {
		if flags.Lookup(name) == nil || name == "config" || notAnOption(name) {
			errs = append(errs, fmt.Errorf("%s line %d: %q is not an option; options are %s", path, node.Line, name, names(flags)))
			delete(values, name)
		}
	}
	return values, errors.Join(errs...)
}

func names(flags *pflag.FlagSet) string {
	var all []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "config" && !notAnOption(f.Name) {
			all = append(all, f.Name)
		}
	})
	sort.Strings(all)
	return strings.Join(all, ", ")
}

// Runs is the annotation of a command that has subcommands and also runs without one.
const Runs = "runs"

// Manual sets the help of a command and its subcommands.
func Manual(c *cobra.Command, variables Variables) {
	c.SetUsageFunc(func(c *cobra.Command) error {
		out := c.OutOrStderr()
		use := c.UseLine()
		if c.HasAvailableSubCommands() {
			commands := c.CommandPath() + " COMMAND [flags]"
			if _, runs := c.Annotations[Runs]; runs {
				use += "\n  " + commands
			} else {
				use = commands
			}
		}
		fmt.Fprintf(out, "Usage:\n  %s\n", use)
		if c.HasAvailableSubCommands() {
			fmt.Fprintln(out, "\nCommands:")
			for _, sub := range c.Commands() {
				if sub.IsAvailableCommand() {
					fmt.Fprintf(out, "  %-12s %s\n", sub.Name(), sub.Short)
				}
			}
		}
		if c.Example != "" {
			fmt.Fprintf(out, "\nExamples:\n%s\n", strings.TrimRight(c.Example, "\n"))
		}
		fmt.Fprintf(out, "\nOptions:\n%s", Usage(c.Flags(), variables))
		return nil
	})
}

const usageWidth = 80

// Usage describes flags in a command's help: text, variables and default.
func Usage(flags *pflag.FlagSet, variables Variables) string {
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
		notes := slices.DeleteFunc([]string{strings.Join(variables(f.Name), " or "), defaultText(f)}, func(note string) bool { return note == "" })
		if len(notes) > 0 {
			text += "\n(" + strings.Join(notes, "; ") + ")"
		}
		paragraphs = append(paragraphs, "  "+head+"\n"+wrap(text))
	})
	return strings.Join(paragraphs, "\n")
}

func defaultText(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "[]", "false":
		return ""
	}
	if f.Value.Type() == "string" {
		return fmt.Sprintf("default %q", f.DefValue)
	}
	return "default " + strings.Trim(f.DefValue, "[]")
}

func wrap(text string) string {
	const indent = "        "
	return indent + strings.ReplaceAll(ansi.Wordwrap(text, usageWidth-len(indent), ""), "\n", "\n"+indent) + "\n"
}
