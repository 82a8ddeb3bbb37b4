package config

import (
	"encoding/csv"
	"maps"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Schema is the JSON Schema (draft 2020-12) of the YAML file that fills the flags. What
// a flag's type doesn't say of its values (a range, the words that it knows) is in
// limits, by the flag's name.
func Schema(flags *pflag.FlagSet, title string, limits map[string]map[string]any) map[string]any {
	properties := map[string]any{}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "config" || notAnOption(f.Name) {
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

// typeOf is a flag's type and default in the schema's words.
func typeOf(f *pflag.Flag) map[string]any {
	switch f.Value.Type() {
	case "bool":
		return map[string]any{"type": "boolean", "default": f.DefValue == "true"}
	case "int":
		n, _ := strconv.Atoi(f.DefValue) // pflag wrote it
		return map[string]any{"type": "integer", "default": n}
	case "float64":
		x, _ := strconv.ParseFloat(f.DefValue, 64) // pflag wrote it
		return map[string]any{"type": "number", "default": x}
	case "stringSlice":
		return map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "default": defaults(f)}
	case "uintSlice":
		return map[string]any{"type": "array", "items": map[string]any{"type": "integer", "minimum": 0}, "default": defaults(f)}
	default: // a duration is a text too
		return map[string]any{"type": "string", "default": f.DefValue}
	}
}

// defaults are a list's.
func defaults(f *pflag.Flag) []string {
	text := strings.Trim(f.DefValue, "[]")
	if text == "" {
		return []string{}
	}
	items, err := csv.NewReader(strings.NewReader(text)).Read()
	if err != nil {
		return []string{text} // pflag wrote it: not reached
	}
	return items
}
