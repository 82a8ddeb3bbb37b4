// Package config sets a program's flags from the command line, the environment and a YAML file, in this order of precedence.
// The flag --nri-socket is GPUSLICE_NRI_SOCKET in the environment and nri-socket in the file.
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

// EnvPrefix starts the name of every variable.
const EnvPrefix = "GPUSLICE_"

func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Aliases are further variables of flags, with less precedence: the names in manifests of other systems.
type Aliases map[string][]string

// notAnOption: GPUSLICE_VERSION in a container's environment must not print the version.
func notAnOption(flag string) bool { return flag == "help" || flag == "version" }

// Fill sets every flag that the command line did not set. file can be empty. It returns all errors, each with the value's source.
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
				if err := flags.Set(f.Name, value); err != nil {
					errs = append(errs, fmt.Errorf("variable %s: %s: %w", name, f.Name, err))
				}
				return
			}
		}
		if node, ok := values[f.Name]; ok {
			if err := set(flags, f, node); err != nil {
				errs = append(errs, fmt.Errorf("%s line %d: %s: %w", file, node.Line, f.Name, err))
			}
		}
	})
	return errors.Join(errs...)
}

func set(flags *pflag.FlagSet, f *pflag.Flag, node yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return flags.Set(f.Name, node.Value)
	}
	slice, ok := f.Value.(pflag.SliceValue)
	var items []string
	if !ok || node.Kind != yaml.SequenceNode || node.Decode(&items) != nil {
		return errors.New("the value must be a plain value, or for some options a list of plain values")
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
