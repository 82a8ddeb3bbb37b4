package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
)

func TestFillPrecedence(t *testing.T) {
	for _, test := range []struct {
		description string
		args        []string
		env         map[string]string
		file        string
		wantNode    string
		wantCount   int
		wantDirs    []string
	}{
		{"defaults", nil, nil, "", "", 10, []string{"/a"}},
		{"the file over the default", nil, nil, "node-name: f\ncount: 3\ndirs: [/x, /y]\n", "f", 3, []string{"/x", "/y"}},
		{"the environment over the file", nil, map[string]string{"GPUSLICE_COUNT": "4"}, "count: 3\n", "", 4, []string{"/a"}},
		{"the command line over all", []string{"--count=5"}, map[string]string{"GPUSLICE_COUNT": "4"}, "count: 3\n", "", 5, []string{"/a"}},
		{"an alias", nil, map[string]string{"NODE_NAME": "k"}, "node-name: f\n", "k", 10, []string{"/a"}},
		{"our own name over an alias", nil, map[string]string{"NODE_NAME": "k", "GPUSLICE_NODE_NAME": "g"}, "", "g", 10, []string{"/a"}},
		{"an empty file", nil, nil, "\n# nothing\n", "", 10, []string{"/a"}},
		{"an empty list", nil, nil, "dirs: []\n", "", 10, []string{}},
		{"a list's item with a comma", nil, nil, "dirs: ['/x,y', /z]\n", "", 10, []string{"/x,y", "/z"}},
		{"an empty variable is a value", nil, map[string]string{"GPUSLICE_NODE_NAME": ""}, "node-name: f\n", "", 10, []string{"/a"}},
		{"variables that are commands", nil, map[string]string{"GPUSLICE_HELP": "x", "GPUSLICE_VERSION": "v1.2"}, "", "", 10, []string{"/a"}},
	} {
		t.Run(test.description, func(t *testing.T) {
			flags := newFlags(t, test.args)
			err := config.Fill(flags.FlagSet, writeFile(t, test.file), config.OfDaemon(config.Aliases{"node-name": {"NODE_NAME"}}), lookup(test.env))
			require.NoError(t, err)
			require.Equal(t, test.wantNode, flags.node)
			require.Equal(t, test.wantCount, flags.count)
			require.Equal(t, test.wantDirs, flags.dirs)
		})
	}
}

func TestFillErrors(t *testing.T) {
	for _, test := range []struct {
		description string
		env         map[string]string
		file        string
		want        []string
	}{
		{"a bad value in the environment", map[string]string{"GPUSLICE_COUNT": "many"}, "", []string{"variable GPUSLICE_COUNT", "count", "many"}},
		{"a bad value in the file", nil, "\ncount: many\n", []string{"line 2", "count", "many"}},
		{"an unknown option", nil, "counts: 3\n", []string{"line 1", `"counts" is not an option`, "count"}},
		{"a file inside the file", nil, "config: other.yaml\n", []string{`"config" is not an option`}},
		{"a command in the file", nil, "version: true\n", []string{`"version" is not an option`}},
		{"an option twice", nil, "count: 1\ndirs: []\ncount: 2\n", []string{"line 3", "already defined at line 1"}},
		{"not a mapping", nil, "- count\n", []string{"line 1", "cannot unmarshal"}},
		{"nested", nil, "dirs:\n  a: b\n", []string{"line 2", "dirs"}},
		{"a list of lists", nil, "dirs: [[a]]\n", []string{"line 1", "dirs", "plain value"}},
		{"not YAML", nil, "count: [\n", []string{"--config"}},
		{"two at once", map[string]string{"GPUSLICE_COUNT": "x"}, "nope: 1\n", []string{"GPUSLICE_COUNT", "nope"}},
	} {
		t.Run(test.description, func(t *testing.T) {
			flags := newFlags(t, nil)
			err := config.Fill(flags.FlagSet, writeFile(t, test.file), config.OfDaemon(nil), lookup(test.env))
			require.Error(t, err)
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
	t.Run("no such file", func(t *testing.T) {
		require.ErrorIs(t, config.Fill(newFlags(t, nil).FlagSet, "/nonexistent.yaml", config.OfDaemon(nil), lookup(nil)), os.ErrNotExist)
	})
}

type testFlags struct {
	*pflag.FlagSet
	node  string
	count int
	dirs  []string
}

func newFlags(t *testing.T, args []string) *testFlags {
	f := &testFlags{FlagSet: pflag.NewFlagSet("test", pflag.ContinueOnError)}
	f.StringVar(&f.node, "node-name", "", "")
	f.IntVar(&f.count, "count", 10, "")
	f.StringSliceVar(&f.dirs, "dirs", []string{"/a"}, "")
	f.String("config", "", "")
	f.Bool("help", false, "")
	f.Bool("version", false, "")
	require.NoError(t, f.Parse(args))
	return f
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func writeFile(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestUsage(t *testing.T) {
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.SortFlags = false
	f.Int("count", 10, "`containers` that may share one GPU, with a text that is so long that it takes two lines of the manual")
	f.StringSliceP("dirs", "d", nil, "directories")
	f.Bool("quiet", false, "print nothing")
	f.String("name", "n", "name")
	f.Bool("help", false, "help for test")
	require.Equal(t, `  --count containers
        containers that may share one GPU, with a text that is so long that it
        takes two lines of the manual
        (GPUSLICE_COUNT or COUNT; default 10)

  -d, --dirs strings
        directories
        (GPUSLICE_DIRS)

  --quiet
        print nothing
        (GPUSLICE_QUIET)

  --name string
        name
        (GPUSLICE_NAME; default "n")
`, config.Usage(f, config.OfDaemon(config.Aliases{"count": {"COUNT"}})))
	require.Contains(t, config.Usage(f, config.OfCommand("quiet")), "(default \"n\")\n")
}

// A command reads no variable that it does not name.
func TestVariablesOfACommand(t *testing.T) {
	flags := newFlags(t, nil)
	env := map[string]string{"GPUSLICE_NODE_NAME": "n", "GPUSLICE_COUNT": "junk"}
	require.NoError(t, config.Fill(flags.FlagSet, "", config.OfCommand("node-name"), lookup(env)))
	require.Equal(t, "n", flags.node)
	require.Equal(t, 10, flags.count)
}
