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

var (
	// function matches the beginning of a function, in Go and in the limiter's C.
	function = regexp.MustCompile(`(?m)^(?:func (?:\([^)]*\) )?|\w[\w *]*[ *])(\w+)[(\[]`)
	// decoder matches the name of a decoding function.
	decoder = regexp.MustCompile(`^([pP]arse|[dD]ecode)`)
	// decodes matches a call in a decoding function with another name.
	decodes = regexp.MustCompile(`\b(Unmarshal\w*|NewDecoder|NewScanner|Sscan\w*)\(`)
)

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
		if _, there := code[name]; !there {
			t.Errorf("%s: there is none any more", name)
		}
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
	for name, body := range code {
		if _, function, _ := strings.Cut(name, " "); decoder.MatchString(function) || decodes.MatchString(body) {
			decoders = append(decoders, name)
		}
	}
	for _, name := range decoders {
		assert.True(t, slices.Contains(listed, name), "%s: give it a Fuzz function, and both a line in test/fuzz/decoders.txt", name)
	}
	assert.True(t, slices.IsSorted(listed), "keep the list sorted")
}

// functions returns the bodies of the code's functions, and of the tests', by "directory name".
func functions(t *testing.T, root string) (code, tests map[string]string) {
	code, tests = map[string]string{}, map[string]string{}
	tops := []string{"test/limiter/creaders"}
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() && e.Name()[0] != '.' && !slices.Contains([]string{"build", "docs", "install", "test", "testdata"}, e.Name()) {
			tops = append(tops, e.Name())
		}
	}
	for _, top := range tops {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".c") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			dir, err := filepath.Rel(root, filepath.Dir(path))
			into := code
			if strings.HasSuffix(path, "_test.go") || top == "test/limiter/creaders" {
				into = tests
			}
			all := function.FindAllSubmatchIndex(text, -1)
			for i, m := range all {
				end := len(text)
				if i+1 < len(all) {
					end = all[i+1][0]
				}
				into[dir+" "+string(text[m[2]:m[3]])] += string(text[m[0]:end])
			}
			return err
		}))
	}
	return code, tests
}
