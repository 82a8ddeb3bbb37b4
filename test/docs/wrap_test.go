package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

const (
	maxColumns     = 120
	maxReadmeLines = 149
)

var (
	fenceLine = regexp.MustCompile("^ *(?:(?:[0-9]+\\.|[-*]) +)?```([a-z]*)")
	// unbreakable is a code span or a link: Markdown and the tests of commands want it on one line.
	unbreakable = regexp.MustCompile("`[^`]*`|!?\\[[^\\]]*\\]\\([^)]*\\)")
)

// tooLong returns the numbers of the lines that can be broken and are longer than maxColumns. Rows of tables and
// blocks of output can't be broken. Commands can: with a backslash.
func tooLong(text string) (lines []int) {
	block, inBlock := "", false
	for i, line := range strings.Split(text, "\n") {
		if fence := fenceLine.FindStringSubmatch(line); fence != nil {
			block, inBlock = fence[1], !inBlock
		}
		isTable := strings.HasPrefix(strings.TrimSpace(line), "|")
		if utf8.RuneCountInString(line) <= maxColumns || inBlock && block != "sh" || isTable || strings.HasPrefix(line, "    ") && !inBlock {
			continue
		}
		if len(strings.Fields(unbreakable.ReplaceAllString(line, "x"))) > 1 {
			lines = append(lines, i+1)
		}
	}
	return lines
}

func TestLinesAreWrapped(t *testing.T) {
	out, err := exec.Command("git", "-C", root, "ls-files", "--", "*.md").Output()
	require.NoError(t, err)
	for _, file := range strings.Fields(string(out)) {
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		for _, line := range tooLong(string(text)) {
			t.Errorf("%s:%d: more than %d columns", file, line, maxColumns)
		}
	}
}

func TestTooLong(t *testing.T) {
	word, code := strings.Repeat("x", maxColumns), "`"+strings.Repeat("a b ", maxColumns/4)+"`"
	text := strings.Join([]string{
		word, "x " + word, "| " + word + " |", code, "and " + code,
		"```sh", "make " + word, "```", "```", "a row of " + word, "```",
	}, "\n")
	require.Equal(t, []int{2, 5, 7}, tooLong(text))
}

func TestReadmeIsShort(t *testing.T) {
	require.LessOrEqual(t, strings.Count(documents(t)["README.md"], "\n"), maxReadmeLines)
}
