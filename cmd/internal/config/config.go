// Package config fills a program's flags from where operators put values: the
// command line, the environment, a YAML file, in that order of precedence. A flag
// --nri-socket is GPUSLICE_NRI_SOCKET in the environment and nri-socket in the file.
package config

import (
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

// Fill sets every flag that the command line didn't set. file may be empty.
// All errors are reported at once, each with where its value came from.
func Fill(flags *pflag.FlagSet, file string, aliases Aliases, lookupEnv func(string) (string, bool)) error {
	var errs []error
	values, err := readFile(flags, file)
	if err != nil {
		errs = append(errs, err)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
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
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("read the configuration %s: %w", path, err)
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
		switch {
		case flags.Lookup(key.Value) == nil || key.Value == "config" || key.Value == "help":
			errs = append(errs, fmt.Errorf("%s line %d: %q is not an option (there are %s)", path, key.Line, key.Value, names(flags)))
			continue
		case node.Kind == yaml.ScalarNode:
			values[key.Value] = value{node.Value, node.Line}
		case node.Kind == yaml.SequenceNode:
			var items []string
			for _, item := range node.Content {
				if item.Kind != yaml.ScalarNode {
					errs = append(errs, fmt.Errorf("%s line %d: %s: want a list of plain values", path, item.Line, key.Value))
				}
				items = append(items, item.Value)
			}
			values[key.Value] = value{strings.Join(items, ","), node.Line}
		default:
			errs = append(errs, fmt.Errorf("%s line %d: %s: want a value or a list of values", path, node.Line, key.Value))
		}
	}
	return values, errors.Join(errs...)
}

func names(flags *pflag.FlagSet) string {
	var all []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "config" && f.Name != "help" {
			all = append(all, f.Name)
		}
	})
	sort.Strings(all)
	return strings.Join(all, ", ")
}
