// Package fuzz keeps the list of the decoders of foreign data, decoders.txt, as the code has
// them: one that is new has a Fuzz function, or a reason why it needs none.
package fuzz

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

var function = regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?(\w+)[(\[]`)

// decoder is a name that says what a function does.
var decoder = regexp.MustCompile(`^([pP]arse|[dD]ecode)`)

func TestDecoders(t *testing.T) {
	root, err := harness.Repository()
	require.NoError(t, err)
	code, tests := functions(t, root)
	list, err := os.ReadFile("decoders.txt")
	require.NoError(t, err)

	var listed, decoders []string
	for line := range strings.Lines(string(list)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		require.GreaterOrEqual(t, len(fields), 3, line)
		name := fields[0] + " " + fields[1]
		listed = append(listed, name)
		assert.Contains(t, code, name, "there is none any more")
		if fields[2] == "-" {
			assert.Greater(t, len(fields), 3, "%s: without a reason", name)
			continue
		}
		where, target, other := strings.Cut(fields[2], ".")
		if !other {
			where, target = fields[0], fields[2]
		}
		assert.Contains(t, tests, where+" "+target, name)
	}
	for name := range code {
		if _, function, _ := strings.Cut(name, " "); decoder.MatchString(function) {
			decoders = append(decoders, name)
		}
	}
	for _, name := range decoders {
		assert.True(t, slices.Contains(listed, name), "%s: give it a Fuzz function, and both a line in test/fuzz/decoders.txt", name)
	}
	assert.True(t, slices.IsSorted(listed), "keep the list sorted")
}

// functions are "folder name" of the code's functions, and of the tests'.
func functions(t *testing.T, root string) (code, tests map[string]bool) {
	code, tests = map[string]bool{}, map[string]bool{}
	for _, top := range []string{"cmd", "deviceplugin", "gpu", "grant", "internal", "limiter", "monitor", "nri-plugin", "oci", "scheduler"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			folder, err := filepath.Rel(root, filepath.Dir(path))
			into := code
			if strings.HasSuffix(path, "_test.go") {
				into = tests
			}
			for _, m := range function.FindAllSubmatch(text, -1) {
				into[folder+" "+string(m[1])] = true
			}
			return err
		}))
	}
	return code, tests
}
