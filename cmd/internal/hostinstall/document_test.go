package hostinstall

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every way in which a document can hold a key, and the text that it becomes.
func TestSet(t *testing.T) {
	const toml, json = "containerd", "docker"
	for _, test := range []struct {
		description  string
		engine       string
		before, want string
		key          []string
		value        any
	}{
		{"a value is there: its comment stays", toml, "a = 1 # one\n", "a = 2 # one\n", []string{"a"}, 2},
		{"in its section", toml, "[s]\n  a = 1 # one\n\n[t]\n", "[s]\n  a = 1 # one\n  b = true\n\n[t]\n", []string{"s", "b"}, true},
		{"an empty section", toml, "  [s] # mine\n", "  [s] # mine\n    b = true\n", []string{"s", "b"}, true},
		{"a value in an inline table", toml, "s = { a = 1, b = 2 } # mine\n", "s = { a = 1, b = true } # mine\n", []string{"s", "b"}, true},
		{"a key with dots", toml, "[s]\n a.b = 1\n c = 2\n", "[s]\n a.b = 3\n c = 2\n", []string{"s", "a", "b"}, 3},
		{"no table at all", toml, "a = 1", "a = 1\n\n[s.'x.y']\n  b = 'z'\n", []string{"s", "x.y", "b"}, "z"},
		{"an empty file", toml, "", "[s]\n  b = true\n", []string{"s", "b"}, true},
		{"a section of a table of that", toml, "[s.t]\n", "[s.t]\n\n[s]\n  b = true\n", []string{"s", "b"}, true},
		{"before the first section", toml, "[s]\n", "a = 1\n[s]\n", []string{"a"}, 1},
		{"among the first settings", toml, "# c\nb = 1\n\n[s]\n", "# c\nb = 1\na = 1\n\n[s]\n", []string{"a"}, 1},
		{"a value of several lines", toml, "a = [\n 1, # one\n]\nb = 1\n", "a = [2]\nb = 1\n", []string{"a"}, []any{2}},
		{"lines that end as Windows has them", toml, "[s]\r\na = 1\r\n", "[s]\r\na = 1\r\nb = true\r\n", []string{"s", "b"}, true},

		{"a member is there", json, `{"a": 1, "b": 2}`, `{"a": 3, "b": 2}`, []string{"a"}, 3},
		{"on one line", json, `{"a":1,"b":2}`, `{"a":1,"b":2,"c": {"d":true}}`, []string{"c", "d"}, true},
		{"on lines", json, "{\n\t\"a\": 1\n}\n", "{\n\t\"a\": 1,\n\t\"c\": {\n\t\t\"d\": true\n\t}\n}\n", []string{"c", "d"}, true},
		{"in an object on lines", json, "{\n  \"a\": {\n    \"b\": 1\n  }\n}", "{\n  \"a\": {\n    \"b\": 1,\n    \"c\": \"<\"\n  }\n}", []string{"a", "c"}, "<"},
		{"in an empty object on lines", json, "{\n \"a\": {},\n \"b\": 1\n}", "{\n \"a\": {\n  \"c\": 1\n },\n \"b\": 1\n}", []string{"a", "c"}, 1},
		{"an object", json, "{}", "{\n  \"a\": 1\n}", []string{"a"}, 1},
		{"nothing", json, " \n", "{\n  \"a\": 1\n}\n", []string{"a"}, 1},
	} {
		t.Run(test.description, func(t *testing.T) {
			d, err := parse(test.engine, []byte(test.before))
			require.NoError(t, err)
			changes, err := apply(d, []setting{{test.key, test.value}})
			require.NoError(t, err)
			assert.Equal(t, test.want, string(d.text()))

			before, err := parse(test.engine, []byte(test.before))
			require.NoError(t, err)
			kept, err := undo(d, changes)
			require.NoError(t, err)
			assert.Empty(t, kept)
			assert.Equal(t, tree(t, before), tree(t, d))
		})
	}
}

// What can't be read or edited is refused, with its place where it has one.
func TestRefused(t *testing.T) {
	for _, test := range []struct {
		description, text string
		engine            string
		key               []string
		want              string
	}{
		{"no JSON", "{\n  \"a\": 1 2\n}\n", "docker", nil, "line 2, column 10"},
		{"a comment in JSON", "{\n  // c\n}", "docker", nil, "comments and trailing commas are not valid in JSON"},
		{"cut off", "{\"a\": [1", "docker", nil, "line 1, column 9: parsing array after value: unexpected EOF"},
		{"no object", "[]", "docker", nil, "no JSON object"},
		{"two objects", "{}\n{}", "docker", nil, "line 2, column 1: invalid character '{' after top-level value"},
		{"a name twice", "{\"a\": 1,\n\"a\": 2}", "docker", []string{"a"}, "unsupported layout"},
		{"no TOML", "a = 1\nb = \n", "podman", nil, "line 2, column 5"},
		{"a table twice", "[a]\n[a]\n", "podman", nil, "line 2"},
		{"a value where a table is wanted", "a = 1\n", "podman", []string{"a", "b"}, "a is not a table"},
		{"a table where a value is wanted", "[a]\n", "podman", []string{"a"}, "set a: it is a table"},
		{"an array of tables", "[[a]]\n", "podman", []string{"a", "b"}, "a is not a table"},
		{"null", `{"a": null}`, "docker", []string{"a", "b"}, "a is not a table"},
	} {
		t.Run(test.description, func(t *testing.T) {
			d, err := parse(test.engine, []byte(test.text))
			if test.key != nil {
				require.NoError(t, err)
				_, err = apply(d, []setting{{test.key, 1}})
				assert.Equal(t, test.text, string(d.text()))
			}
			assert.ErrorContains(t, err, test.want)
		})
	}
}

// fuzzSettings are of all kinds: values, tables beside others, lists.
func fuzzSettings() []setting {
	return []setting{
		{[]string{"runtimes", Name, "path"}, "/usr/bin/gpuslice-runtime"},
		{[]string{"default-runtime"}, Name},
		{[]string{"plugins", "io.containerd.cri.v1.runtime", "containerd", "runtimes", Name, "options", "BinaryName"}, "/x"},
		{[]string{"plugins", "io.containerd.nri.v1.nri", "disable"}, false},
		{[]string{"plugins", "io.containerd.nri.v1.nri", "default_validator", "enable"}, true},
		{[]string{"engine", "runtimes", Name}, []any{"/x"}},
		{[]string{"disabled_plugins"}, []any{}},
	}
}

func tree(t *testing.T, d document) map[string]any {
	tree, err := d.tree()
	require.NoError(t, err)
	return tree
}

// An install and an uninstall restore the content and the comments.
func roundTrip(t *testing.T, engine string, text []byte) {
	before, err := parse(engine, text)
	if err != nil {
		return // not valid for the engine either
	}
	for _, s := range fuzzSettings() {
		d, err := parse(engine, text)
		require.NoError(t, err)
		changes, err := apply(d, []setting{s})
		if err != nil {
			continue // refused
		}
		again, err := apply(d, []setting{s})
		require.NoError(t, err)
		assert.Empty(t, again, "the second time changes nothing")
		kept, err := undo(d, changes)
		require.NoError(t, err)
		assert.Empty(t, kept)
		assert.True(t, equal(withoutEmpty(tree(t, before)), withoutEmpty(tree(t, d))), "%s\nbecame\n%s", text, d.text())
		if engine != "docker" {
			assert.Equal(t, comments(text), comments(d.text()))
		}
	}
}

// The same for a whole plan, with and without another default runtime before.
func roundTripOfPlan(t *testing.T, engine string, text []byte) {
	main := mainFiles[engine]
	for _, version := range []string{"1.6.0", "1.7.24", "2.4.2", ""} {
		h := fstest.MapFS{inside(main): {Data: text}}
		p, err := planners[engine](h, Options{Engine: engine, RuntimePath: "/usr/bin/gpuslice-runtime", SetDefault: true, ContainerdVersion: version})
		if err != nil {
			continue // of a version, or with an import, that is refused
		}
		for _, target := range p.targets {
			if target.path != main {
				continue
			}
			before, err := parse(engine, text)
			require.NoError(t, err, "the plan has read it")
			d, err := parse(engine, text)
			require.NoError(t, err)
			f := fileRecord{Path: main}
			if f.Changes, err = apply(d, target.settings); err != nil {
				continue // refused
			}
			u, err := f.undo(engine, d.text(), nil)
			require.NoError(t, err)
			assert.Empty(t, u.kept)
			after, err := parse(engine, u.text)
			require.NoError(t, err)
			assert.True(t, equal(withoutEmpty(tree(t, before)), withoutEmpty(tree(t, after))), "%s\nbecame\n%s\nand then\n%s", text, d.text(), u.text)
			if engine != "docker" && !bytes.Contains(text, []byte(Name)) { // a table that was replaced loses its comments without the backup
				assert.Equal(t, comments(text), comments(u.text))
			}
		}
		if engine != "containerd" {
			return
		}
	}
}

// comments are the comments of a TOML text, in order.
func comments(text []byte) (found []string) {
	var p unstable.Parser
	p.KeepComments = true
	p.Reset(text)
	var walk func(n *unstable.Node)
	walk = func(n *unstable.Node) {
		for ; n.Valid(); n = n.Next() {
			if n.Kind == unstable.Comment {
				found = append(found, string(n.Data))
			}
			walk(n.Child())
		}
	}
	for p.NextExpression() {
		walk(p.Expression())
	}
	return found
}

func addFixtures(f *testing.F, pattern string) {
	files, err := filepath.Glob(pattern)
	require.NoError(f, err)
	require.NotEmpty(f, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(data)
	}
}

func FuzzTOML(f *testing.F) {
	addFixtures(f, "testdata/containerd/*.toml")
	addFixtures(f, "testdata/podman/*.conf")
	f.Add([]byte("plugins = {'io.containerd.nri.v1.nri' = {}} # c"))
	f.Add([]byte("[[plugins]]\n[engine]\nruntimes.x = ['a']\n[plugins.x]"))
	f.Add([]byte("engine.runtimes = {\n a = 1, # one\n b = nan,\n}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		roundTrip(t, "containerd", text)
		if _, err := parseTOML(text); err == nil {
			roundTripOfPlan(t, "containerd", text)
			roundTripOfPlan(t, "podman", text)
		}
	})
}

func FuzzJSON(f *testing.F) {
	addFixtures(f, "testdata/docker/*.json")
	f.Add([]byte(`{"runtimes":{"gpuslice":{"path":"x","args":[{"a":{}}]}},"plugins":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		roundTrip(t, "docker", text)
		if _, err := parseJSON(text); err == nil {
			roundTripOfPlan(t, "docker", text)
		}
	})
}
