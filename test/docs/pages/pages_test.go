package pages

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const page = "# Title\n\n```sh\n# a comment\none --a \\\n  --b   # why\ntwo  # refused: it has no right\n```\n\n## Next\n\n" +
	"```\n$ a screen\n```\n\n1. ```sh\n   three\n   ```\n\n```sh\nfour <<'END'\nkind: Pod\n  indented: \\\nEND\nfive |\n  six\n```\n"

func TestBlocks(t *testing.T) {
	of := func(section string, line int, text string) Command {
		return Command{Page: "p.md", Section: section, Line: line, Text: text}
	}
	two := of("Title", 7, "two")
	two.Refused = true
	require.Equal(t, []Block{
		{"p.md", "Title", 4, []Command{of("Title", 5, "one --a --b"), two}},
		{"p.md", "Next", 17, []Command{of("Next", 17, "three")}},
		{"p.md", "Next", 21, []Command{of("Next", 21, "four <<'END'\nkind: Pod\n  indented: \\\nEND"), of("Next", 25, "five | six")}},
	}, Blocks("p.md", page))
	require.Len(t, Commands("p.md", page), 5)
}

func TestInline(t *testing.T) {
	text := "# Title\n\n```sh\nkubectl get `x`\n```\n\n`kubectl` is a name, `kubectl get pods` and `other -x` are none.\n## Next\n| `helm list` |\n"
	require.Equal(t, []Command{
		{Page: "p.md", Section: "Title", Line: 7, Text: "kubectl get pods"},
		{Page: "p.md", Section: "Next", Line: 9, Text: "helm list"},
	}, Inline("p.md", text, "kubectl", "helm"))
}

func TestRead(t *testing.T) {
	found, err := Read()
	require.NoError(t, err)
	require.Contains(t, found, "docs/INSTALL.md")
}
