package grant_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/granttest"
)

// writeKeys replaces a file of keys as an editor or a Secret does: by a rename.
func writeKeys(t *testing.T, path, text string, mode os.FileMode) {
	require.NoError(t, os.WriteFile(path+".new", []byte(text), mode))
	require.NoError(t, os.Chmod(path+".new", mode))
	require.NoError(t, os.Rename(path+".new", path))
}

func TestOpenKeyFile(t *testing.T) {
	good := granttest.PublicKeys("one")
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
		{"through a link, as a ConfigMap's files are", func(t *testing.T, path string) {
			writeKeys(t, path+".data", good, 0o400)
			require.NoError(t, os.Symlink(path+".data", path))
		}, ""},
		{"all read", file(good, 0o444), ""},
		{"group writes", file(good, 0o664), "its mode is 0664"},
		{"all write", file(good, 0o646), "its mode is 0646"},
		{"none there", func(*testing.T, string) {}, "no such file"},
		{"a directory", func(t *testing.T, path string) { require.NoError(t, os.Mkdir(path, 0o700)) }, "not a regular file"},
		{"a FIFO without a writer", func(t *testing.T, path string) { require.NoError(t, syscall.Mkfifo(path, 0o400)) }, "not a regular file"},
		{"empty", file("", 0o400), "no key"},
		{"a private key", file(granttest.PrivateKeys("one"), 0o400), "is a private key, and a node must not have one"},
		{"endless", file(strings.Repeat("#\n", 40_000), 0o400), "more than 65536 bytes"},
		{"another user's", func(t *testing.T, path string) {
			writeKeys(t, path, good, 0o400)
			require.NoError(t, os.Chown(path, 65534, 0), "the suite runs as root")
		}, "must belong to root"},
	} {
		t.Run(test.description, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys")
			test.make(t, path)
			keys := grant.OpenPublicKeys(path, slog.New(slog.DiscardHandler))
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
	private, public := granttest.PrivateKeys, granttest.PublicKeys
	byTwo, err := granttest.SigningKey("two").Sign("u-1", "node-1", signedPayload)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "keys")
	writeKeys(t, path, public("one"), 0o444)
	var log bytes.Buffer
	keys := grant.OpenPublicKeys(path, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, keys.Ready())
	log.Reset()

	for _, step := range []struct {
		description  string
		change       func()
		oneOK, twoOK bool
		logs         string // "": nothing
	}{
		{"nothing new", func() {}, true, false, ""},
		{"a second key", func() { writeKeys(t, path, public("one", "two"), 0o444) }, true, true, "grant keys read"},
		{"nothing new again", func() {}, true, true, ""},
		{"emptied", func() { writeKeys(t, path, "", 0o400) }, true, true, "no key"},
		{"still empty", func() {}, true, true, ""},
		{"a bad key", func() { writeKeys(t, path, public("two")+public("one")[:60], 0o444) }, true, true, "key 2"},
		{"a private key", func() { writeKeys(t, path, private("two"), 0o444) }, true, true, "is a private key"},
		{"writable by all", func() { writeKeys(t, path, public("two"), 0o666) }, true, true, "mode is 0666"},
		{"gone", func() { require.NoError(t, os.Remove(path)) }, true, true, "no such file"},
		{"still gone", func() {}, true, true, ""},
		{"there again, as before", func() { writeKeys(t, path, public("one", "two"), 0o444) }, true, true, "grant keys read"},
		{"the old key removed", func() { writeKeys(t, path, public("two"), 0o444) }, false, true, "grant keys read"},
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
		assert.NotContains(t, log.String(), private("two")[40:60], step.description)
	}
}

// Only root and a group read a scheduler's keys.
func TestOpenSigningKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	for mode, says := range map[os.FileMode]string{
		0o400: "", 0o440: "", 0o600: "", 0o640: "",
		0o444: "its mode is 0444, and the bits 0037 must be clear: chmod 0440", 0o401: "its mode is 0401", 0o660: "its mode is 0660",
	} {
		writeKeys(t, path, granttest.PrivateKeys("two", "one"), mode)
		keys := grant.OpenSigningKeys(path, slog.New(slog.DiscardHandler))
		if says != "" {
			require.ErrorContains(t, keys.Ready(), says)
			require.Nil(t, keys.Current())
			continue
		}
		require.NoError(t, keys.Ready())
		require.Equal(t, granttest.SigningKey("two").ID(), keys.Current().ID(), "the first signs")
		require.NoError(t, keys.Verify("u-1", "node-1", signedPayload, signedOne), "the second verifies too")
	}
	writeKeys(t, path, granttest.PublicKeys("one"), 0o400)
	require.ErrorContains(t, grant.OpenSigningKeys(path, slog.New(slog.DiscardHandler)).Ready(), "the scheduler signs with the private key")
}
