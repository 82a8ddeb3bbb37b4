package clidoc

import (
	"maps"
	"strconv"

	"github.com/spf13/pflag"
)

// Schema is the JSON Schema (draft 2020-12) of the YAML file, for flags with their defaults. limits adds ranges and enumerations.
func Schema(flags *pflag.FlagSet, title string, limits map[string]map[string]any) map[string]any {
	properties := map[string]any{}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "config" || !isOption(f) {
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

// typeOf is the schema of a flag's type and default.
func typeOf(f *pflag.Flag) map[string]any {
	switch f.Value.Type() {
	case "bool":
		return map[string]any{"type": "boolean", "default": f.DefValue == "true"}
	case "int":
		n, _ := strconv.Atoi(f.DefValue)
		return map[string]any{"type": "integer", "default": n}
	case "float64":
		x, _ := strconv.ParseFloat(f.DefValue, 64)
		return map[string]any{"type": "number", "default": x}
	case "stringSlice":
		return map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "default": append([]string{}, f.Value.(pflag.SliceValue).GetSlice()...)}
	case "uintSlice":
		return map[string]any{"type": "array", "items": map[string]any{"type": "integer", "minimum": 0}, "default": append([]string{}, f.Value.(pflag.SliceValue).GetSlice()...)}
	default: // also a duration
		return map[string]any{"type": "string", "default": f.DefValue}
	}
}
