package term_test

import (
	"bytes"
	"math"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
)

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0M", 1: "1M", 1 << 20: "1M", 1<<20 + 1: "2M", 10239 << 20: "10239M", 10240 << 20: "10.0G", 30001 << 20: "29.3G",
		143771 << 20: "140G", 99<<30 + 1020<<20: "100G", 999 << 30: "999G", 1000 << 30: "1.0T", math.MaxUint64: "16.0E",
	} {
		assert.Equal(t, want, term.Bytes(n))
	}
}

func TestCutMiddle(t *testing.T) {
	for _, test := range []struct {
		text    string
		columns int
		want    string
	}{
		{"train", 5, "train"},
		{"trainer-0", 6, "tr…r-0"},
		{"trainer-0", 2, "…0"},
		{"trainer-0", 1, "…"},
		{"trainer-0", 0, ""},
		{"卡卡卡卡", 5, "卡…卡"},
	} {
		assert.Equal(t, test.want, term.CutMiddle(test.text, test.columns), "%q in %d", test.text, test.columns)
	}
}

// Only a terminal has a width, and colors without --color=always.
func TestStyleOf(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	for _, test := range []struct {
		when term.When
		env  map[string]string
		want bool
	}{
		{term.Auto, nil, false},
		{term.Always, map[string]string{"NO_COLOR": "1", "TERM": "dumb"}, true},
		{term.Never, nil, false},
	} {
		getenv := func(name string) string { return test.env[name] }
		assert.Equal(t, term.Style{Colors: test.want}, term.StyleOf(file, test.when, getenv))
		assert.Equal(t, term.Style{Colors: test.want}, term.StyleOf(&bytes.Buffer{}, test.when, getenv))
	}
	assert.False(t, term.CanDraw(file, func(string) string { return "xterm" }))
}

func TestPaint(t *testing.T) {
	s := term.Style{Colors: true}
	assert.Equal(t, "\x1b[31mx\x1b[0m", s.Paint(term.Red, "x"))
	assert.Equal(t, "x", s.Paint(term.Plain, "x"))
	assert.Empty(t, s.Paint(term.Red, ""))
	assert.Equal(t, "x", term.Style{}.Paint(term.Red, "x"))
}

func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"pod-1/main":               "pod-1/main",
		"\x1b[2Jgone\r\n\t":        "?[2Jgone???",
		"\u009b31m":                "?31m", // a C1 control starts an escape sequence
		"bad\xff":                  "bad?",
		"\u202egnp.exe":            "?gnp.exe",
		"Größe 卡":                  "Größe 卡",
		"two\u2028lines\u200bhide": "two?lines?hide",
	} {
		assert.Equal(t, want, term.Clean(text))
		assert.Equal(t, want+"\n\t"+want, term.CleanLines(want+"\n\t"+want))
	}
}

func TestCutFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := term.Clean(rapid.String().Draw(t, "text"))
		columns := rapid.IntRange(0, 20).Draw(t, "columns")
		got := term.CutMiddle(text, columns)
		if ansi.StringWidth(got) > columns {
			t.Fatalf("%q is %d wide", got, ansi.StringWidth(got))
		}
		if got != text && columns > 0 && !strings.Contains(got, "…") {
			t.Fatalf("%q does not show that it was cut", got)
		}
		for _, r := range text {
			if unicode.IsControl(r) {
				t.Fatalf("%q was cleaned", text)
			}
		}
	})
}

func TestBar(t *testing.T) {
	for _, test := range []struct {
		columns int
		part    float64
		label   string
		want    string
	}{
		{12, 0, "", "[          ]"},
		{12, 0.5, "", "[|||||     ]"},
		{12, 1, "", "[||||||||||]"},
		{12, 0.001, "", "[|         ]"},
		{12, 7, "", "[||||||||||]"},
		{12, -1, "", "[          ]"},
		{12, math.NaN(), "", "[          ]"},
		{12, math.Inf(1), "99%", "[|||||| 99%]"},
		{12, 0.5, "50%", "[|||    50%]"},
		{9, 0.01, "1/1000", "   1/1000"},
		{10, 0.01, "1/1000", "[| 1/1000]"},
		{3, 1, "100%", "10…"},
		{0, 1, "100%", ""},
	} {
		got := term.Style{}.Bar(test.columns, test.part, test.label)
		assert.Equal(t, test.want, got, "%v in %d", test.part, test.columns)
		assert.Equal(t, test.columns, ansi.StringWidth(got))
	}
	assert.Equal(t, "[\x1b[33m||||||||\x1b[0m  ]", term.Style{Colors: true}.Bar(12, 0.8, ""))
}

func table(columns int) *term.Table {
	t := &term.Table{Style: term.Style{Columns: columns}, Columns: []term.Column{
		{Head: "POD", Min: 6}, {Head: "N", Right: true}, {Head: "NAME", Min: 4}, {Head: "STATE"},
	}}
	t.Row("default/trainer-0", 7, "main", term.Cell{Text: "active", Color: term.Green})
	t.Row("a", 1000, "a-sidecar\x1b", "corrupt")
	t.Row("(none)")
	return t
}

func TestTable(t *testing.T) {
	for columns, want := range map[int]string{
		0: `
POD                   N  NAME        STATE
default/trainer-0     7  main        active
a                  1000  a-sidecar?  corrupt
(none)
`,
		35: `
POD           N  NAME       STATE
defa…er-0     7  main       active
a          1000  a-si…car?  corrupt
(none)
`,
		10: `
POD        N  NAME  STATE
de…r-0     7  main  active
a       1000  a…r?  corrupt
(none)
`,
	} {
		var out strings.Builder
		require.NoError(t, table(columns).Write(&out))
		assert.Equal(t, want, "\n"+out.String(), columns)
	}
	colored := table(0)
	colored.Colors = true
	lines := colored.Lines()
	assert.True(t, strings.HasPrefix(lines[0], "\x1b[1mPOD\x1b[0m"), lines[0])
	assert.True(t, strings.HasSuffix(lines[1], "  \x1b[32mactive\x1b[0m"), lines[1])
	assert.Len(t, lines, 4, "the headers and three rows")
}

func TestTableWithBars(t *testing.T) {
	table := &term.Table{Columns: []term.Column{{Head: "NAME"}, {Head: "MEMORY", Bar: 14}, {Head: "N"}}, Selected: 2}
	table.Row("a", term.Cell{Bar: true, Part: 0.5, Text: "1/2"}, 1)
	table.Row("b", term.Cell{Bar: true, Part: 1, Text: "2/2"}, 2)
	table.Row("c", "-", 3)
	table.Style.Columns, table.Colors = 24, true
	assert.Equal(t, []string{
		"\x1b[1mNAME\x1b[0m  \x1b[1mMEMORY\x1b[0m          \x1b[1mN\x1b[0m",
		"a     [\x1b[32m||||\x1b[0m     1/2]  1",
		"\x1b[7mb     [|||||||| 2/2]  2 \x1b[0m",
		"c     -               3",
	}, table.Lines())
}
