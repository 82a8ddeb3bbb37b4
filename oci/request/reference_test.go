package request

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const referenceFile = "../../docs/configuration/runtime.md"

const referenceHead = `<!-- Generated from the code by ` + "`make generate`" + `. -->
# /etc/gpuslice/runtime.yaml

What containers of docker, podman and containerd may ask of the node's GPUs. It is read for each container; one with a mistake makes no container, and says
which line. ` + "`install/runtime.example.yaml`" + ` is an example, and ` + "`install/runtime.schema.json`" + ` the schema.

| key | what | values |
|---|---|---|
`

// The reference is that of the keys: `make generate` writes it.
func TestReference(t *testing.T) {
	var page strings.Builder
	page.WriteString(referenceHead)
	rows(&page, Schema(), "")
	if *update {
		require.NoError(t, os.WriteFile(referenceFile, []byte(page.String()), 0o644))
	}
	kept, err := os.ReadFile(referenceFile)
	require.NoError(t, err)
	assert.True(t, page.String() == string(kept), "%s is not of the keys as they are; if that is meant: make generate", referenceFile)
}

// rows has one for each property of an object's schema, and of those within it.
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

// values is what a property can be.
func values(property map[string]any) string {
	if words, ok := property["enum"].([]string); ok {
		return strings.Join(words, ", ")
	}
	text := strings.Trim(fmt.Sprint(property["type"]), "[]")
	text = strings.ReplaceAll(text, " ", " or ")
	if least, ok := property["minimum"]; ok {
		text += fmt.Sprintf(", %v to %v", least, property["maximum"])
	}
	return text
}
