package request

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/golden"
)

const referenceFile = "../../docs/configuration/runtime.md"

const referenceHead = `<!-- Generated from install/runtime.schema.json by ` + "`make generate`" + `. -->
# /etc/gpuslice/runtime.yaml

Limits of the GPU requests of containers without Kubernetes (docker, podman, nerdctl). The file is read for each
container. If it has an error, no container is created, and the message names the line. Example:
` + "`install/runtime.example.yaml`" + `. Schema: ` + "`install/runtime.schema.json`" + `.

| key | what | values |
|---|---|---|
`

// `make generate` writes the reference from the schema.
func TestReference(t *testing.T) {
	var page strings.Builder
	page.WriteString(referenceHead)
	rows(&page, schemaOf(t), "")
	golden.Check(t, referenceFile, page.String())
}

// rows writes a row for each property, in any depth.
func rows(page *strings.Builder, schema map[string]any, prefix string) {
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		property := properties[name].(map[string]any)
		fmt.Fprintf(page, "| `%s%s` | %v | %s |\n", prefix, name, property["description"], values(property))
		rows(page, property, prefix+name+".")
		if of, ok := property["additionalProperties"].(map[string]any); ok {
			rows(page, of, prefix+name+".NAME.")
		}
	}
}

// values returns the values that a property can have.
func values(property map[string]any) string {
	if words, ok := property["enum"].([]any); ok {
		return strings.Trim(strings.ReplaceAll(fmt.Sprint(words), " ", ", "), "[]")
	}
	text := strings.Trim(fmt.Sprint(property["type"]), "[]")
	text = strings.ReplaceAll(text, " ", " or ")
	if least, ok := property["minimum"]; ok {
		text += fmt.Sprintf(", %v to %v", least, property["maximum"])
	}
	return text
}
