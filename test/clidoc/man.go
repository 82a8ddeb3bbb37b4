package clidoc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Man writes man pages of a command and its subcommands (section 8) to a directory; empty: a temporary one. The date is that of
// SOURCE_DATE_EPOCH, or today. It checks that each page has all options.
func Man(t *testing.T, c *cobra.Command, dir string) {
	if dir == "" {
		dir = t.TempDir()
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	c.DisableAutoGenTag = true
	require.NoError(t, doc.GenManTree(c, &doc.GenManHeader{Section: "8", Source: "gpuslice", Manual: "gpuslice"}, dir))
	check(t, c, dir, c.Name())
}

func check(t *testing.T, c *cobra.Command, dir, name string) {
	page, err := os.ReadFile(filepath.Join(dir, name+".8"))
	require.NoError(t, err)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if isOption(f) && !f.Hidden {
			assert.Contains(t, string(page), "--"+f.Name, name)
		}
	})
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			check(t, sub, dir, name+"-"+sub.Name())
		}
	}
}
