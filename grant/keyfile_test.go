package grant_test

import (
	"bytes"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

// writeKeys replaces a file of keys as an editor or a Secret does: by a rename.
func writeKeys(t *testing.T, path, text string, mode os.FileMode) {
	require.NoError(t, os.WriteFile(path+".new", []byte(text), mode))
	require.NoError(t, os.Chmod(path+".new", mode))
	require.NoError(t, os.Rename(path+".new", path))
}

func TestOpenKeyFile(t *testing.T) {
	good := hex.EncodeToString(secretOne) + "\n"
	file := func(text string, mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, path string) { writeKeys(t, path, text, mode) }
	}
	for _, test := range []struct {
		description string
		make        func(t *testing.T, path string)
		says        string
	}{
		{"owner only", file(good, 0o400), ""},
		{"owner writes", file(good, 0o600), ""},
		{"group reads", file(good, 0o440), ""},
		{"owner writes, group reads", file(good, 0o640), ""},
		{"through a link, as a Secret's files are", func(t *testing.T, path string) {
			writeKeys(t, path+".data", good, 0o400)
			require.NoError(t, os.Symlink(path+".data", path))
		}, ""},
		{"world reads", file(good, 0o444), "mode 0444"},
		{"world executes", file(good, 0o401), "mode 0401"},
		{"group writes", file(good, 0o660), "mode 0660"},
		{"none there", func(*testing.T, string) {}, "no such file"},
		{"a folder", func(t *testing.T, path string) { require.NoError(t, os.Mkdir(path, 0o700)) }, "not a regular file"},
		{"a FIFO that nobody writes", func(t *testing.T, path string) { require.NoError(t, syscall.Mkfifo(path, 0o400)) }, "not a regular file"},
		{"empty", file("", 0o400), "no key"},
		{"a bad key", file("ff", 0o400), "line 1"},
		{"endless", file(strings.Repeat("#\n", 40_000), 0o400), "more than 65536 bytes"},
		{"somebody else's", func(t *testing.T, path string) {
			writeKeys(t, path, good, 0o400)
			require.NoError(t, os.Chown(path, 65534, 0), "the suite runs as root")
		}, "must belong to root"},
	} {
		t.Run(test.description, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys")
			test.make(t, path)
			keys := grant.OpenKeyFile(path, slog.New(slog.DiscardHandler))
			if test.says == "" {
				require.NoError(t, keys.Ready())
				require.NoError(t, keys.Verify("u-1", "node-1", signedPayload, signedOne))
				return
			}
			require.ErrorContains(t, keys.Ready(), test.says)
			require.ErrorContains(t, keys.Ready(), path)
			require.ErrorIs(t, keys.Verify("u-1", "node-1", signedPayload, signedOne), grant.ErrSignature, "nothing is believed")
			require.NoError(t, os.RemoveAll(path))
			writeKeys(t, path, good, 0o400)
			keys.Reload()
			require.NoError(t, keys.Ready(), "until it is good")
			require.NoError(t, keys.Verify("u-1", "node-1", signedPayload, signedOne))
		})
	}
}

// What changes in the file is taken over; what is bad is reported once, and the last
// good keys stay.
func TestKeyFileIsFollowed(t *testing.T) {
	one, two := hex.EncodeToString(secretOne), hex.EncodeToString(secretTwo)
	byTwo, err := grant.Sign(parseKey(t, secretTwo), "u-1", "node-1", signedPayload)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "keys")
	writeKeys(t, path, one, 0o400)
	var log bytes.Buffer
	keys := grant.OpenKeyFile(path, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, keys.Ready())
	log.Reset()

	for _, step := range []struct {
		description  string
		change       func()
		oneOK, twoOK bool
		logs         string // "": nothing
	}{
		{"nothing new", func() {}, true, false, ""},
		{"a second key", func() { writeKeys(t, path, one+"\n"+two, 0o400) }, true, true, "grant keys read"},
		{"nothing new again", func() {}, true, true, ""},
		{"emptied", func() { writeKeys(t, path, "", 0o400) }, true, true, "no key"},
		{"still empty", func() {}, true, true, ""},
		{"a bad key", func() { writeKeys(t, path, two+"\n"+one[:10], 0o400) }, true, true, "line 2"},
		{"readable to all", func() { writeKeys(t, path, two, 0o644) }, true, true, "mode 0644"},
		{"gone", func() { require.NoError(t, os.Remove(path)) }, true, true, "no such file"},
		{"still gone", func() {}, true, true, ""},
		{"there again, as before", func() { writeKeys(t, path, one+"\n"+two, 0o400) }, true, true, "grant keys read"},
		{"the old key taken away", func() { writeKeys(t, path, two, 0o400) }, false, true, "grant keys read"},
	} {
		step.change()
		log.Reset()
		keys.Reload()
		assert.Equal(t, step.oneOK, keys.Verify("u-1", "node-1", signedPayload, signedOne) == nil, step.description)
		assert.Equal(t, step.twoOK, keys.Verify("u-1", "node-1", signedPayload, byTwo) == nil, step.description)
		if step.logs == "" {
			assert.Empty(t, log.String(), step.description)
		}
		assert.Contains(t, log.String(), step.logs, step.description)
		assert.NotContains(t, log.String(), one[:8], step.description)
		assert.NotContains(t, log.String(), two[:8], step.description)
	}
}
