package certificate

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	certPath, keyPath := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	at := start
	now := func() time.Time { return at }
	log := slog.New(slog.DiscardHandler)
	write := func(cert, key []byte) {
		require.NoError(t, os.WriteFile(certPath, cert, 0o600))
		require.NoError(t, os.WriteFile(keyPath, key, 0o600))
	}
	_, err := NewFiles(certPath, keyPath, now, log)
	require.ErrorContains(t, err, certPath)
	one, _ := next(t, Bundle{}, start)
	two, _ := next(t, Bundle{}, start)
	write(one.Certs, two.Keys)
	_, err = NewFiles(certPath, keyPath, now, log)
	require.ErrorContains(t, err, keyPath)

	write(one.Certs, one.Keys)
	files, err := NewFiles(certPath, keyPath, now, log)
	require.NoError(t, err)
	require.NoError(t, files.Ready())
	serves := func(b Bundle, why string) {
		pair, err := files.GetCertificate(nil)
		require.NoError(t, err)
		require.Equal(t, serving(t, b, start).Certificate, pair.Certificate, why)
	}
	serves(one, "at first")
	write(two.Certs, one.Keys)
	at = at.Add(rereadInterval)
	serves(one, "half of a change")
	write(two.Certs, two.Keys)
	serves(one, "it was read a moment ago")
	at = at.Add(rereadInterval)
	serves(two, "the whole change")
	require.NoError(t, os.Remove(keyPath))
	at = at.Add(rereadInterval)
	serves(two, "a file that is gone")
}
