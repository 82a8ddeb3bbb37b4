//go:build root

package grant_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/granttest"
)

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
			require.ErrorIs(t, keys.Verify("u-1", "node-1", signedPayload, signedOne), grant.ErrSignature, "every grant is rejected")
			require.NoError(t, os.RemoveAll(path))
			writeKeys(t, path, good, 0o400)
			keys.Reload()
			require.NoError(t, keys.Ready(), "until it is good")
			require.NoError(t, keys.Verify("u-1", "node-1", signedPayload, signedOne))
		})
	}
}
