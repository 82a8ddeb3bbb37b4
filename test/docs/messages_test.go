package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// others are messages of CUDA, the loader, Kubernetes, containerd.
var others = map[string]bool{
	"CUDA_ERROR_OUT_OF_MEMORY": true, "CUDA_ERROR_NOT_INITIALIZED": true, "no CUDA-capable device": true,
	"libcuda.so.1: cannot open shared object file": true, "Insufficient nvidia.com/gpu": true,
}

// sources is all messages of gpuslice's programs, in one text.
func sources(t *testing.T) string {
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && (name == "test" || name == "build" || name == "docs" || name == "testdata" || strings.HasPrefix(name, ".") && path != root) {
			return fs.SkipDir
		}
		if strings.HasSuffix(name, "_test.go") || !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".c") {
			return nil
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	require.NoError(t, err)
	return all.String()
}

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	// What stands in a format's place.
	gaps = regexp.MustCompile(`…|\.\.\.`)
)

// The code has each message that the troubleshooting page quotes in the first column of a table: a change of
// a message needs a change of its row.
func TestQuotedMessagesAreSaid(t *testing.T) {
	said := sources(t)
	page := documents(t)["docs/TROUBLESHOOTING.md"]
	checked := 0
	for _, line := range strings.Split(page, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 { // three columns: a message, why, what to do
			continue
		}
		for _, match := range quoted.FindAllStringSubmatch(cells[1], -1) {
			if others[match[1]] || !strings.Contains(match[1], " ") {
				continue
			}
			for _, piece := range gaps.Split(match[1], -1) {
				assert.True(t, strings.Contains(said, strings.TrimSpace(piece)), "%q is quoted, and is not in the code", match[1])
			}
			checked++
		}
	}
	require.Greater(t, checked, 10)
}

// Each test that docs/SECURITY.md names exists.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	out, err := exec.Command("git", "-C", root, "grep", "-hoE", "^func Test[A-Za-z0-9]+", "--", "*_test.go").Output()
	require.NoError(t, err)
	exists := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		exists[strings.TrimPrefix(strings.TrimSpace(line), "func ")] = true
	}
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(documents(t)["docs/SECURITY.md"], -1)
	require.NotEmpty(t, named)
	for _, match := range named {
		assert.True(t, exists[match[1]], "docs/SECURITY.md names %s", match[1])
	}
}
