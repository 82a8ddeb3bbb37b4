package cdihook

import (
	"encoding/csv"
	"fmt"
	"strings"
)

// flagSet reads a hook's flags: --name=value and --name value. It is small because it
// starts with every container, in a program that is told to be quick: pflag, which would
// do, brings the network's packages with it.
type flagSet struct {
	set map[string]func(value string) error
	// unknown are the flags that were left out.
	unknown []string
}

// text is a flag with one value.
func (f *flagSet) text(into *string, name, value string) {
	*into = value
	f.set[name] = func(value string) error { *into = value; return nil }
}

// each is a flag that may come again.
func (f *flagSet) each(into *[]string, name string) {
	f.set[name] = func(value string) error { *into = append(*into, value); return nil }
}

// list is a flag that may come again, and hold several values with commas between them.
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

// parse reads the arguments. A flag that isn't known is left out, with the word after it
// if that can be its value.
func (f *flagSet) parse(args []string) error {
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		if word == "--" {
			return nil
		}
		if len(word) < 2 || word[0] != '-' {
			continue // hooks take no arguments
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
				return fmt.Errorf("the flag --%s needs an argument", name)
			}
			value, args = args[0], args[1:]
		}
		if err := set(value); err != nil {
			return fmt.Errorf("the flag --%s: %w", name, err)
		}
	}
	return nil
}
