// Package golden compares what a test makes with a file of the repository. With the test's flag -update it writes the file.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the files that tests compare with: look at the diff")

// Check compares a whole file.
func Check(t testing.TB, file, made string) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(made), 0o644))
	}
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	if diff := cmp.Diff(string(kept), made); diff != "" {
		t.Errorf("%s differs; if that is meant, run make generate:\n%s", file, diff)
	}
}

// Section compares the part of a file between two texts.
func Section(t testing.TB, file, begin, end, made string) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(data), begin)
	require.True(t, found, "%s has no %s", file, begin)
	_, after, found := strings.Cut(rest, end)
	require.True(t, found, "%s has no %s", file, end)
	Check(t, file, before+begin+made+end+after)
}
