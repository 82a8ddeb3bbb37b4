package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// A configuration file yields only values of existing options.
func FuzzReadFile(f *testing.F) {
	f.Add([]byte("node-name: f\ndirs: [/x, /y]\n"))
	f.Add([]byte("node-name: &a [*a]\nconfig: x\n"))
	f.Add([]byte("? [a]\n: {b: c}\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		flags.String("node-name", "", "")
		flags.StringSlice("dirs", nil, "")
		flags.String("config", "", "")
		path := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		values, err := readFile(flags, path)
		if err != nil {
			return
		}
		for name := range values {
			require.Contains(t, []string{"node-name", "dirs"}, name)
		}
	})
}
