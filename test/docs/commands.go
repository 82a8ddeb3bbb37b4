package docs

import (
	"regexp"
	"strings"
)

// command is one command of a page, with its continuation lines.
type command struct {
	page    string
	section string // the heading above it
	line    int
	text    string
	// refused: its comment says that it has to fail.
	refused bool
}

// shellBlock is a block of commands; one without "sh" is output, configuration or a form.
var shellBlock = regexp.MustCompile("(?ms)^( *)(?:[0-9]+\\. +)?```sh\n(.*?)^ *```")

var headings = regexp.MustCompile("(?m)^#+ +(.+)$")

// commands are those of a page, in order.
func commands(page, text string) []command {
	var found []command
	for _, at := range shellBlock.FindAllStringSubmatchIndex(text, -1) {
		line, section := 1+strings.Count(text[:at[4]], "\n"), ""
		if above := headings.FindAllStringSubmatch(text[:at[4]], -1); above != nil {
			section = above[len(above)-1][1]
		}
		var open *command
		for i, one := range strings.Split(strings.TrimSuffix(text[at[4]:at[5]], "\n"), "\n") {
			one = strings.TrimSpace(one)
			if open == nil {
				if one == "" || strings.HasPrefix(one, "#") {
					continue
				}
				found = append(found, command{page: page, section: section, line: line + i})
				open = &found[len(found)-1]
			}
			open.text += one
			if strings.HasSuffix(one, `\`) {
				open.text = strings.TrimSuffix(open.text, `\`)
				continue
			}
			if body, comment, ok := strings.Cut(open.text, "  # "); ok {
				open.text, open.refused = strings.TrimSpace(body), strings.HasPrefix(comment, "refused")
			}
			open = nil
		}
	}
	return found
}
