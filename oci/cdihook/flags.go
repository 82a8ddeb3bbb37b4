package cdihook

import (
	"encoding/csv"
	"fmt"
	"strings"
)

// flagSet reads --name=value and --name value. pflag would link package net into a program that starts
// several times per container.
type flagSet struct {
	set     map[string]func(value string) error
	unknown []string
}

func (f *flagSet) text(into *string, name, value string) {
	*into = value
	f.set[name] = func(value string) error { *into = value; return nil }
}

func (f *flagSet) each(into *[]string, name string) {
	f.set[name] = func(value string) error { *into = append(*into, value); return nil }
}

// list adds a flag with values that are separated by commas.
func (f *flagSet) list(into *[]string, name string) {
	f.set[name] = func(value string) error {
		if value == "" {
			return nil
		}
		values, err := csv.NewReader(strings.NewReader(value)).Read()
		*into = append(*into, values...)
		return err
	}
}

// parse skips an unknown flag, and the next word if that can be its value.
func (f *flagSet) parse(args []string) error {
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		if word == "--" {
			return nil
		}
		if len(word) < 2 || word[0] != '-' {
			continue // hooks have no arguments
		}
		name, value, given := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		set, known := f.set[name]
		if !known || !strings.HasPrefix(word, "--") {
			f.unknown = append(f.unknown, word)
			if !given && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				args = args[1:]
			}
			continue
		}
		if !given {
			if len(args) == 0 {
				return fmt.Errorf("the flag --%s has no value", name)
			}
			value, args = args[0], args[1:]
		}
		if err := set(value); err != nil {
			return fmt.Errorf("the flag --%s: %w", name, err)
		}
	}
	return nil
}
