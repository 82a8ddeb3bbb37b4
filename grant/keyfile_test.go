package grant_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
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

// If ParseSigningKeys accepts a file, its key signs what its public keys verify. Errors contain nothing of a key.
func FuzzParseSigningKeys(f *testing.F) {
	f.Add([]byte("# new\n" + granttest.PrivateKeys("two", "one")))
	f.Add([]byte(granttest.PublicKeys("one")))
	f.Add([]byte(strings.Repeat("0123456789abcdef", 4)))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, ring, err := grant.ParseSigningKeys(data)
		if err != nil {
			require.Less(t, len(err.Error()), 400)
			for line := range strings.Lines(string(data)) {
				if line = strings.TrimSpace(line); len(line) > 60 {
					require.NotContains(t, err.Error(), line)
				}
			}
			return
		}
		signature, err := key.Sign("u-1", "node-1", signedPayload)
		require.NoError(t, err)
		require.NoError(t, ring.Verify("u-1", "node-1", signedPayload, signature))
		require.ErrorIs(t, ring.Verify("u-2", "node-1", signedPayload, signature), grant.ErrSignature)
		_, err = grant.ParsePublicKeys(data)
		require.Error(t, err, "a node accepts no private key")
	})
}

// If ParsePublicKeys accepts a file, it has one or two keys.
func FuzzParsePublicKeys(f *testing.F) {
	f.Add([]byte("# new\n" + granttest.PublicKeys("two", "one")))
	f.Add([]byte(granttest.PrivateKeys("one")))
	f.Fuzz(func(t *testing.T, data []byte) {
		ring, err := grant.ParsePublicKeys(data)
		if err != nil {
			require.Less(t, len(err.Error()), 400)
			return
		}
		keys := len(strings.Fields(ring.String()))
		require.True(t, keys == 1 || keys == 2, "%d keys", keys)
	})
}
