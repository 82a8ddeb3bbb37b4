package request

import "maps"

// Schema is the JSON Schema (draft 2020-12) of the config, for editors. Load checks more.
func Schema() map[string]any {
	schema := objectSchema(configFields())
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "gpuslice-runtime's config, " + DefaultPath
	return schema
}

func objectSchema[T any](fields []field[T]) map[string]any {
	properties := map[string]any{}
	for _, f := range fields {
		property := maps.Clone(f.schema)
		property["description"] = f.doc
		properties[f.name] = property
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

// required says which properties must be there.
func required(schema map[string]any, names ...string) map[string]any {
	schema["required"] = names
	return schema
}
