package request

import (
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the schema")

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

// The example says what holds without a file, and names every key with its default.
func TestExample(t *testing.T) {
	example, err := os.ReadFile(exampleFile)
	require.NoError(t, err)
	c, err := Parse(exampleFile, example)
	require.NoError(t, err)
	want := DefaultConfig()
	want.Path = exampleFile
	assert.Equal(t, want, c)

	all := uncommented(example)
	d := &decoder{path: exampleFile, lines: map[string]int{}}
	require.NotNil(t, d.parse(all))
	object(d, "", d.parse(all), configFields(), &c)
	require.Empty(t, d.errs)
	for _, f := range configFields() {
		assert.Contains(t, d.lines, f.name)
	}
	for _, f := range limitFields() {
		assert.Contains(t, d.lines, "maximum."+f.name)
	}
	for _, f := range defaultFields() {
		assert.Contains(t, d.lines, "default."+f.name)
	}
	for _, f := range sliceFields() {
		assert.Contains(t, d.lines, "slices.large."+f.name)
	}

	c, err = Parse(exampleFile, all)
	require.NoError(t, err)
	assert.Equal(t, Limit{Memory: Size{MiB: 40960}, CorePercent: 50, Devices: 2}, c.Maximum)
	assert.Equal(t, Slice{Amount: mib(40960, 50), Devices: Devices{Count: 2}, HighPriority: true}, c.Slices["large"])
}

// The schema that is shipped is that of the keys: `make generate` writes it.
func TestSchema(t *testing.T) {
	data, err := json.MarshalIndent(Schema(), "", "  ")
	require.NoError(t, err)
	data = append(data, '\n')
	if *update {
		require.NoError(t, os.WriteFile(schemaFile, data, 0o644))
	}
	shipped, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	assert.True(t, string(data) == string(shipped), "%s is not of the keys as they are; if that is meant: make generate", schemaFile)
}

// What the schema says of values is what Parse does with them.
func TestSchemaSaysWhatIsTaken(t *testing.T) {
	properties := Schema()["properties"].(map[string]any)
	taken := func(key, value string) bool {
		_, err := Parse("f", []byte(key+": "+value+"\n"))
		return err == nil
	}
	for name, p := range properties {
		property := p.(map[string]any)
		if all, ok := property["enum"].([]string); ok {
			for _, word := range all {
				assert.True(t, taken(name, word), "%s: %s", name, word)
			}
			assert.False(t, taken(name, "another"), name)
		}
		if least, ok := property["minimum"]; ok {
			low, err := json.Marshal(least)
			require.NoError(t, err)
			high, err := json.Marshal(property["maximum"])
			require.NoError(t, err)
			for _, text := range []string{string(low), string(high)} {
				assert.True(t, taken(name, text), "%s: %s", name, text)
			}
			for _, text := range []string{"-" + string(low), string(high) + "0"} {
				assert.False(t, taken(name, text), "%s: %s", name, text)
			}
		}
		if property["type"] == "boolean" {
			assert.True(t, taken(name, "true"), name)
			assert.False(t, taken(name, "1"), name)
		}
	}
	size := regexp.MustCompile(sizeSchema["pattern"].(string))
	for _, text := range strings.Fields("8GiB 8g 8Gi 8000m 25% 1.5T 8192KiB 100% 8 8b 8gbb x -1g 1.5% .5g") {
		_, err := ParseSize(text)
		assert.Equal(t, err == nil, size.MatchString(text), text)
	}
}
