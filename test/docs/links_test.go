package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/docs/pages"
)

const root = "../.."

// documents are all pages for people, by their path from the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	found, err := pages.Read()
	require.NoError(t, err)
	return found
}

var (
	linkPattern    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingPattern = regexp.MustCompile("(?m)^#+ +(.+)$")
	fencePattern   = regexp.MustCompile("(?ms)^ *(?:[0-9]+\\. +)?```.*?^ *```")
)

// anchors are the headings of a page as links name them: lower case, spaces as dashes, other
// signs left out.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, match := range headingPattern.FindAllStringSubmatch(fencePattern.ReplaceAllString(text, ""), -1) {
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127 && r != '’':
				return r
			}
			return -1
		}, strings.ToLower(match[1]))
		found[slug] = true
	}
	return found
}

// Each link within the repository leads to a file, and to a heading of it.
func TestLinks(t *testing.T) {
	all := documents(t)
	for name, text := range all {
		for _, match := range linkPattern.FindAllStringSubmatch(fencePattern.ReplaceAllString(text, ""), -1) {
			link := match[1]
			if strings.Contains(link, "://") {
				continue
			}
			path, anchor, _ := strings.Cut(link, "#")
			target := name
			if path != "" {
				target = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(filepath.Join(root, target)); !assert.NoError(t, err, "%s: link %s", name, link) || anchor == "" {
				continue
			}
			assert.True(t, anchors(all[target])[anchor], "%s: link %s: %s has no such heading", name, link, target)
		}
	}
}

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
