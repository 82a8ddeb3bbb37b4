package docs

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
