// Package language checks that code and documents use the terms of docs/GLOSSARY.md.
package language

import (
	"bufio"
	"bytes"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// notOurs are files with other people's words, or with those of earlier versions.
var notOurs = regexp.MustCompile(`^(LICENSE|docs/LICENCES\.md|docs/RENAMES\.md|docs/measurements/|testdata/compat/|test/language/|.*\.(png|sum|svg)$|.*/testdata/fuzz/)`)

// rule is a word that isn't used.
type rule struct {
	names   bool // neither in identifiers
	instead string
}

// rules are words, in lower case, and phrases that aren't used.
type rules struct {
	words   map[string]rule
	phrases map[*regexp.Regexp]string
}

func TestWords(t *testing.T) {
	rules := readRules(t)
	var findings []string
	for _, file := range files(t) {
		if notOurs.MatchString(file) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		if bytes.IndexByte(data, 0) >= 0 {
			continue
		}
		findings = append(findings, check(rules, file, data)...)
	}
	for _, f := range findings {
		t.Error(f)
	}
}

func TestTermsAreFew(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "docs/GLOSSARY.md"))
	require.NoError(t, err)
	terms := regexp.MustCompile(`(?m)^\| ([^|]+) \|`).FindAllStringSubmatch(string(data), -1)[1:]
	require.LessOrEqual(t, len(terms), 60)
	seen := map[string]bool{}
	for _, term := range terms {
		require.False(t, seen[term[1]], term[1])
		seen[term[1]] = true
	}
}

func TestCheckFinds(t *testing.T) {
	rules := readRules(t)
	for text, want := range map[string]int{
		"package a\n\n// The card is told.\n":       2, // examples of words that are not used
		"package a\n\nvar cardCount, CARDS int\n":   2,
		"package a\n\nvar s = \"nobody\"\n":         1,
		"package a\n\nvar s = `discard`\n":          0,
		"package a\n\nvar whoami int\n":             0,
		"package a\n\n// It ends, for it is old.\n": 1,
	} {
		require.Len(t, check(rules, "a.go", []byte(text)), want, text)
	}
	require.Len(t, check(rules, "a.md", []byte("Who tells `CardTypeMismatch`?\n")), 2)
}

func readRules(t *testing.T) rules {
	f, err := os.Open("language.txt")
	require.NoError(t, err)
	defer f.Close()
	found := rules{map[string]rule{}, map[*regexp.Regexp]string{}}
	for s := bufio.NewScanner(f); s.Scan(); {
		if line := s.Text(); line != "" && line[0] != '#' {
			parts := strings.Split(line, "\t")
			require.Len(t, parts, 3, line)
			if parts[0] == "phrase" {
				found.phrases[regexp.MustCompile(parts[1]+`\b`)] = parts[2]
				continue
			}
			for word := range strings.FieldsSeq(parts[1]) {
				found.words[word] = rule{parts[0] == "name", parts[2]}
			}
		}
	}
	return found
}

func files(t *testing.T) []string {
	out, err := exec.Command("git", "-C", root, "ls-files").Output()
	require.NoError(t, err)
	return strings.Fields(string(out))
}

var (
	// hamis are HAMi's names of reasons for which a GPU doesn't fit.
	hamis = regexp.MustCompile(`\bCard(Insufficient(Memory|Core)|TypeMismatch|U(UID|uid)Mismatch|Cordoned|TimeSlicingExhausted|ComputeUnitsExhausted|NotHealth|NotFoundCustomFilterRule)\b`)
	// nvidias is an option of NVIDIA's hook update-ldcache.
	nvidias = regexp.MustCompile(`--folder\b|^"folder"$`)
	words   = regexp.MustCompile(`[A-Za-z][A-Za-z0-9]*`)
	camel   = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)
)

// check reports what a file has of the words.
func check(forbidden rules, file string, data []byte) (findings []string) {
	report := func(line int, text string, isText bool) {
		text = nvidias.ReplaceAllString(hamis.ReplaceAllString(text, ""), "")
		for phrase, instead := range forbidden.phrases {
			if match := phrase.FindString(text); match != "" && isText {
				findings = append(findings, finding(file, line, match, rule{instead: instead}))
			}
		}
		for _, w := range words.FindAllString(text, -1) {
			if r, found := forbidden.words[strings.ToLower(w)]; found && (isText || r.names) {
				findings = append(findings, finding(file, line, w, r))
				continue
			}
			for _, part := range camel.FindAllString(w, -1) {
				if r, found := forbidden.words[strings.ToLower(part)]; found && r.names && part != w {
					findings = append(findings, finding(file, line, w, r))
				}
			}
		}
	}
	for _, part := range strings.Split(file, "/") {
		report(0, part, false)
	}
	if filepath.Ext(file) != ".go" {
		for i, line := range strings.Split(string(data), "\n") {
			report(i+1, line, true)
		}
		return findings
	}
	var sc scanner.Scanner
	set := token.NewFileSet()
	f := set.AddFile(file, -1, len(data))
	sc.Init(f, data, nil, scanner.ScanComments)
	for {
		pos, tok, text := sc.Scan()
		switch tok {
		case token.EOF:
			return findings
		case token.IDENT:
			report(f.Line(pos), text, false)
		case token.COMMENT, token.STRING:
			for i, line := range strings.Split(text, "\n") {
				report(f.Line(pos)+i, line, true)
			}
		}
	}
}

func finding(file string, line int, word string, r rule) string {
	return file + ":" + strconv.Itoa(line) + ": " + word + ": write " + r.instead
}
