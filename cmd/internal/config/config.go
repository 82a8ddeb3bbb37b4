// Package config fills a program's flags from where operators put values: the
// command line, the environment, a YAML file, in that order of precedence. A flag
// --nri-socket is GPUSLICE_NRI_SOCKET in the environment and nri-socket in the file.
package config

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix starts every variable of ours.
const EnvPrefix = "GPUSLICE_"

// EnvName is the variable of a flag.
func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Aliases names further variables that are read for a flag, after its own: the
// names that users of other systems have in their manifests.
type Aliases map[string][]string

// notAnOption says of a flag that it is an order to the program and not an option
// of it: GPUSLICE_VERSION in a container's environment must not print the version.
func notAnOption(flag string) bool {
	return flag == "help" || flag == "version"
}

// Fill sets every flag that the command line didn't set. file may be empty.
// All errors are reported at once, each with where its value came from.
func Fill(flags *pflag.FlagSet, file string, aliases Aliases, lookupEnv func(string) (string, bool)) error {
	var errs []error
	values, err := readFile(flags, file)
	if err != nil {
		errs = append(errs, err)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || notAnOption(f.Name) {
			return
		}
		for _, name := range append([]string{EnvName(f.Name)}, aliases[f.Name]...) {
			if value, ok := lookupEnv(name); ok {
				errs = append(errs, set(flags, f.Name, value, "variable "+name))
				return
			}
		}
		if v, ok := values[f.Name]; ok {
			errs = append(errs, set(flags, f.Name, v.text, fmt.Sprintf("%s line %d", file, v.line)))
		}
	})
	return errors.Join(errs...)
}

func set(flags *pflag.FlagSet, name, value, source string) error {
	if err := flags.Set(name, value); err != nil {
		return fmt.Errorf("%s: %s: %w", source, name, err)
	}
	return nil
}

type value struct {
	text string
	line int
}

// readFile reads a mapping of flag names to scalars, or lists of them.
func readFile(flags *pflag.FlagSet, path string) (map[string]value, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("--config %s: %w", path, err)
	}
	if len(doc.Content) == 0 {
		return nil, nil // an empty file
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s line %d: want a mapping of option names to values", path, root.Line)
	}
	values := map[string]value{}
	var errs []error
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		bad := func(at *yaml.Node, format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s line %d: %s", path, at.Line, fmt.Sprintf(format, args...)))
		}
		if flags.Lookup(key.Value) == nil || key.Value == "config" || notAnOption(key.Value) {
			bad(key, "%q is not an option (there are %s)", key.Value, names(flags))
			continue
		}
		if first, twice := values[key.Value]; twice {
			bad(key, "%s is already on line %d", key.Value, first.line)
			continue
		}
		text, err := plain(node)
		if err != nil {
			bad(node, "%s: %v", key.Value, err)
		}
		values[key.Value] = value{text, node.Line}
	}
	return values, errors.Join(errs...)
}

// plain is a scalar, or a list of scalars as a flag of several values takes it.
func plain(node *yaml.Node) (string, error) {
	if node.Kind == yaml.ScalarNode {
		return node.Value, nil
	}
	if node.Kind != yaml.SequenceNode {
		return "", errors.New("want a value or a list of values")
	}
	var items []string
	for _, item := range node.Content {
		if item.Kind != yaml.ScalarNode {
			return "", errors.New("want a list of plain values")
		}
		items = append(items, item.Value)
	}
	if len(items) == 0 {
		return "", nil
	}
	var text strings.Builder
	w := csv.NewWriter(&text) // pflag reads it as one record: an item may hold a comma
	if err := w.Write(items); err != nil {
		return "", err
	}
	w.Flush()
	return strings.TrimSuffix(text.String(), "\n"), w.Error()
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
