package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Plain rewrites the words of Go's parsers in the error for a flag's value, for cobra's SetFlagErrorFunc.
func Plain(_ *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	wants := map[string]string{
		"int": "a whole number", "uint": "a whole number", "uintSlice": "whole numbers", "float64": "a number", "bool": "true or false",
		"duration": "a time with its unit, such as 30s or 5m",
	}[invalid.GetFlag().Value.Type()]
	if wants == "" {
		return err // our own words
	}
	return fmt.Errorf("--%s: %q is not valid: use %s", invalid.GetFlag().Name, invalid.GetValue(), wants)
}

// NameUsage makes each command below c answer a wrong number of arguments with its usage.
func NameUsage(c *cobra.Command) {
	for _, sub := range c.Commands() {
		NameUsage(sub)
		valid := sub.Args
		if valid == nil || sub.HasSubCommands() {
			continue
		}
		sub.Args = func(c *cobra.Command, args []string) error {
			if valid(c, args) == nil {
				return nil
			}
			usage := strings.TrimSuffix(c.UseLine(), " [flags]")
			if len(args) == 0 {
				return fmt.Errorf("an argument is missing: use %s", usage)
			}
			return fmt.Errorf("unexpected arguments (%s): use %s", strings.Join(args, " "), usage)
		}
	}
}
