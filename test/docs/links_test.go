package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

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
