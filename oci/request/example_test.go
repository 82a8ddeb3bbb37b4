package request

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant/size"
)

const (
	exampleFile = "../../install/runtime.example.yaml"
	schemaFile  = "../../install/runtime.schema.json"
)

// comment is an option that is commented out: prose has a space behind the #.
var comment = regexp.MustCompile(`(?m)^#(\S|  )`)

// uncommented is the example with every option in force.
func uncommented(example []byte) []byte {
	return comment.ReplaceAll(example, []byte("$1"))
}

// The example is in effect the default config, and has every key.
func TestExample(t *testing.T) {
	example, err := os.ReadFile(exampleFile)
	require.NoError(t, err)
	c, err := Parse(exampleFile, example)
	require.NoError(t, err)
	want := DefaultConfig()
	want.Path = exampleFile
	assert.Equal(t, want, c)

	all := uncommented(example)
	d := newDocument(exampleFile)
	d.decode(all, &c)
	require.Empty(t, d.errs)
	schema := schemaOf(t)
	for name := range schema["properties"].(map[string]any) {
		assert.Contains(t, d.values, name)
	}
	for key, parent := range map[string]string{"maximum": "maximum", "default": "default", "slices": "slices.large"} {
		for name := range within(schema, key) {
			assert.Contains(t, d.values, parent+"."+name)
		}
	}

	c, err = Parse(exampleFile, all)
	require.NoError(t, err)
	assert.Equal(t, Limit{Memory: Size{MiB: 40960}, CorePercent: 50, Devices: 2}, c.Maximum)
	assert.Equal(t, Slice{Amount: mib(40960, 50), Devices: Devices{Count: 2}, HighPriority: true}, c.Slices["large"])
}

// schemaOf reads the JSON schema of the config, for editors.
func schemaOf(t *testing.T) (schema map[string]any) {
	data, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &schema))
	return schema
}

// within returns the properties inside a property.
func within(schema map[string]any, name string) map[string]any {
	property := schema["properties"].(map[string]any)[name].(map[string]any)
	if of, ok := property["additionalProperties"].(map[string]any); ok {
		property = of
	}
	return property["properties"].(map[string]any)
}

func TestSchemaHasTheKeysOfTheConfig(t *testing.T) {
	schema := schemaOf(t)
	slice := keysOf(reflect.TypeFor[Slice]())
	requireKeys(t, schema["properties"].(map[string]any), keysOf(reflect.TypeFor[Config]()))
	requireKeys(t, within(schema, "maximum"), keysOf(reflect.TypeFor[Limit]()))
	requireKeys(t, within(schema, "slices"), slice)
	requireKeys(t, within(schema, "default"), slices.DeleteFunc(slice, func(key string) bool { return key == "priority" }))
}

func requireKeys(t *testing.T, properties map[string]any, keys []string) {
	t.Helper()
	require.ElementsMatch(t, slices.Collect(maps.Keys(properties)), keys)
}

// keysOf returns the YAML keys of a type.
func keysOf(of reflect.Type) (keys []string) {
	for i := range of.NumField() {
		switch key := of.Field(i).Tag.Get("yaml"); key {
		case "-":
		case ",inline":
			keys = append(keys, keysOf(of.Field(i).Type)...)
		default:
			keys = append(keys, key)
		}
	}
	return keys
}

// Parse accepts and rejects the values that the schema does.
func TestSchemaHasTheValuesOfTheConfig(t *testing.T) {
	schema := schemaOf(t)
	properties := schema["properties"].(map[string]any)
	accepts := func(key, value string) bool {
		_, err := Parse("f", []byte(key+": "+value+"\n"))
		return err == nil
	}
	for name, p := range properties {
		property := p.(map[string]any)
		if all, ok := property["enum"].([]any); ok {
			for _, word := range all {
				assert.True(t, accepts(name, word.(string)), "%s: %s", name, word)
			}
			assert.False(t, accepts(name, "another"), name)
		}
		if least, ok := property["minimum"]; ok {
			low, err := json.Marshal(least)
			require.NoError(t, err)
			high, err := json.Marshal(property["maximum"])
			require.NoError(t, err)
			for _, text := range []string{string(low), string(high)} {
				assert.True(t, accepts(name, text), "%s: %s", name, text)
			}
			for _, text := range []string{"-" + string(low), string(high) + "0"} {
				assert.False(t, accepts(name, text), "%s: %s", name, text)
			}
		}
		if property["type"] == "boolean" {
			assert.True(t, accepts(name, "true"), name)
			assert.False(t, accepts(name, "1"), name)
		}
	}
	form := regexp.MustCompile(within(schema, "maximum")["memory"].(map[string]any)["pattern"].(string))
	for _, text := range strings.Fields("8GiB 8g 8Gi 8000m 25% 1.5T 8192KiB 100% 8 8b 8gbb x -1g 1.5% .5g") {
		_, err := size.Parse(text)
		assert.Equal(t, err == nil, form.MatchString(text), text)
	}
}
