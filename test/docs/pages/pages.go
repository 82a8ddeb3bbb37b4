// Package pages reads the documents for people, and the commands that they show: what stands in
// blocks that begin with ```sh.
package pages

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Read returns all pages for people, by their path from the repository's root.
func Read() (map[string]string, error) {
	root, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "limiter/src/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return nil, err
			}
			found[name] = string(text)
		}
	}
	if found["README.md"] == "" || len(found) < 10 {
		return nil, errors.New("the documents are not where they were")
	}
	return found, nil
}

// Block is a block of commands of a page.
type Block struct {
	Page    string
	Section string // the heading above it
	Line    int
	// Commands are in order, as they are typed.
	Commands []Command
}

// Command is one command of a page, with its continuation lines and its here-document, and
// without its comment.
type Command struct {
	Page    string
	Section string
	Line    int
	Text    string
	// Refused: by its comment, the command has to fail.
	Refused bool
}

var (
	// shellBlock is a block of commands; one without "sh" is output, configuration or a form.
	shellBlock = regexp.MustCompile("(?ms)^( *)(?:[0-9]+\\. +)?```sh\n(.*?)^ *```")
	headings   = regexp.MustCompile("(?m)^#+ +(.+)$")
	fences     = regexp.MustCompile("(?ms)^ *(?:[0-9]+\\. +)?```.*?^ *```")
	code       = regexp.MustCompile("`([^`]+)`")
	hereEnd    = regexp.MustCompile(`<<'?([A-Z]+)'?`)
)

// Blocks are those of a page, in order.
func Blocks(page, text string) (blocks []Block) {
	for _, at := range shellBlock.FindAllStringSubmatchIndex(text, -1) {
		b := Block{Page: page, Line: 1 + strings.Count(text[:at[4]], "\n")}
		// A comment in a block is no heading.
		if above := headings.FindAllStringSubmatch(fences.ReplaceAllString(text[:at[0]], ""), -1); above != nil {
			b.Section = above[len(above)-1][1]
		}
		b.Commands = commandsOf(b, strings.Split(strings.TrimSuffix(text[at[4]:at[5]], "\n"), "\n"))
		blocks = append(blocks, b)
	}
	return blocks
}

// Inline are the commands of these programs that stand in a page's text as `code`, in order. Many are there as a name, without
// what they would need.
func Inline(page, text string, programs ...string) (found []Command) {
	section := ""
	// Blocks have their lines left, so that lines are counted.
	text = fences.ReplaceAllStringFunc(text, func(block string) string { return strings.Repeat("\n", strings.Count(block, "\n")) })
	for i, line := range strings.Split(text, "\n") {
		if heading := headings.FindStringSubmatch(line); heading != nil {
			section = heading[1]
		}
		for _, span := range code.FindAllStringSubmatch(line, -1) {
			if program, _, more := strings.Cut(span[1], " "); more && slices.Contains(programs, program) {
				found = append(found, Command{Page: page, Section: section, Line: i + 1, Text: span[1]})
			}
		}
	}
	return found
}

// Commands are those of all blocks of a page.
func Commands(page, text string) (all []Command) {
	for _, b := range Blocks(page, text) {
		all = append(all, b.Commands...)
	}
	return all
}

func commandsOf(b Block, lines []string) (found []Command) {
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		c := Command{Page: b.Page, Section: b.Section, Line: b.Line + i}
		for i+1 < len(lines) && (strings.HasSuffix(line, `\`) || strings.HasSuffix(line, " |")) {
			i++
			if body, continued := strings.CutSuffix(line, `\`); continued {
				line = body + strings.TrimSpace(lines[i])
			} else {
				line += " " + strings.TrimSpace(lines[i])
			}
		}
		if body, comment, ok := strings.Cut(line, "  # "); ok {
			line, c.Refused = strings.TrimSpace(body), strings.HasPrefix(comment, "refused")
		}
		if end := hereEnd.FindStringSubmatch(line); end != nil {
			for i++; i < len(lines); i++ {
				line += "\n" + lines[i]
				if lines[i] == end[1] {
					break
				}
			}
		}
		c.Text = line
		found = append(found, c)
	}
	return found
}
