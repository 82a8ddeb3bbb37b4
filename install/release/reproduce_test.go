package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// elsewhere is a copy of a repository as another user could have it: in another directory, written in another order, with other times,
// and readable only by its owner.
func elsewhere(t *testing.T, repository string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "another directory", "with a longer name")
	var files []string
	require.NoError(t, filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, strings.TrimPrefix(path, repository))
		}
		return err
	}))
	require.NotEmpty(t, files)
	slices.Reverse(files)
	long := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	for i, name := range files {
		text, err := os.ReadFile(filepath.Join(repository, name))
		require.NoError(t, err)
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, text, 0o700))
		require.NoError(t, os.Chtimes(path, long, long.Add(time.Duration(i)*time.Hour)))
	}
	return dir
}

// differently has the test run with another umask, number of processors, time zone, language and user.
func differently(t *testing.T) {
	t.Helper()
	umask, processors, zone := syscall.Umask(0o077), runtime.GOMAXPROCS(0), time.Local
	t.Cleanup(func() {
		syscall.Umask(umask)
		runtime.GOMAXPROCS(processors)
		time.Local = zone
	})
	runtime.GOMAXPROCS(1)
	time.Local = time.FixedZone("elsewhere", 13*60*60)
	for name, value := range map[string]string{
		"GOMAXPROCS": "1", "TZ": "Pacific/Auckland", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "USER": "builder", "LOGNAME": "builder", "HOSTNAME": "builder",
		"TMPDIR": t.TempDir(), "SOURCE_DATE_EPOCH": "1",
	} {
		t.Setenv(name, value)
	}
}

// All files of a release have the same bytes, made twice of the same programs: archives, packages, image, chart, SBOMs, provenance and
// checksums.
func TestTheSameBytesElsewhere(t *testing.T) {
	repository := built(t)
	first := release(t, repository, "v1.3.0-rc.1")
	copied := elsewhere(t, repository)
	differently(t)
	second := release(t, copied, "v1.3.0-rc.1")
	sums := sumsOf(t, first)
	require.Greater(t, len(sums), 20)
	require.Equal(t, sums, sumsOf(t, second))
	for name := range sums {
		for _, dir := range []string{repository, copied} {
			require.False(t, strings.Contains(read(t, second, name), dir), "%s has the path %s", name, dir)
		}
	}
}
