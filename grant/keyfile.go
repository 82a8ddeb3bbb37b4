package grant

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/internal/periodic"
)

// keyFileInterval is the time between two reads. Notifications are not possible for all file systems.
const keyFileInterval = 2 * time.Second

const maxKeyFileBytes = 64 << 10

type keys struct {
	signing *SigningKey // nil in a file of public keys
	ring    Keyring
}

// PublicKeyFile is a Keyring that follows a file. It is safe for concurrent use.
type PublicKeyFile struct {
	path string
	// forbidden are the bits of the file's mode that must be clear.
	forbidden os.FileMode
	parse     func([]byte) (keys, error)
	log       *slog.Logger
	keys      atomic.Pointer[keys]
	why       atomic.Pointer[string] // the last problem, for Ready
	content   []byte
	problem   string
}

// OpenPublicKeys reads the keys. The file must be regular, belong to root or the caller, and be writable only
// by its owner. While it was never good, all grants are rejected; Ready returns the reason.
func OpenPublicKeys(path string, log *slog.Logger) *PublicKeyFile {
	return open(path, 0o022, log, func(content []byte) (keys, error) {
		ring, err := ParsePublicKeys(content)
		return keys{ring: ring}, err
	})
}

// SigningKeyFile follows a file of private keys.
type SigningKeyFile struct{ *PublicKeyFile }

// OpenSigningKeys is OpenPublicKeys for private keys. Only the owner and group can have read permission.
func OpenSigningKeys(path string, log *slog.Logger) *SigningKeyFile {
	return &SigningKeyFile{open(path, 0o037, log, func(content []byte) (keys, error) {
		signing, ring, err := ParseSigningKeys(content)
		return keys{signing, ring}, err
	})}
}

// Current returns the key to sign with; nil if there is none or no file.
func (f *SigningKeyFile) Current() *SigningKey {
	if f == nil {
		return nil
	}
	return f.keys.Load().signing
}

func open(path string, forbidden os.FileMode, log *slog.Logger, parse func([]byte) (keys, error)) *PublicKeyFile {
	f := &PublicKeyFile{path: path, forbidden: forbidden, parse: parse, log: log}
	f.keys.Store(&keys{})
	f.Reload()
	return f
}

// Ready returns nil once there are keys.
func (f *PublicKeyFile) Ready() error {
	if len(f.keys.Load().ring.keys) > 0 {
		return nil
	}
	return fmt.Errorf("rejecting all grants: no signing keys loaded: %s", *f.why.Load())
}

func (f *PublicKeyFile) Verify(podUID, node, payload, signature string) error {
	return f.keys.Load().ring.Verify(podUID, node, payload, signature)
}

// Run follows the file until ctx ends. The last good keys stay in use.
func (f *PublicKeyFile) Run(ctx context.Context) {
	periodic.Every(ctx, keyFileInterval, nil, f.Reload)
}

// Reload reads the file now. It must not run concurrently.
func (f *PublicKeyFile) Reload() {
	content, err := readKeyFile(f.path, f.forbidden)
	if err == nil && f.problem == "" && f.content != nil && bytes.Equal(content, f.content) {
		return
	}
	var read keys
	if err == nil {
		if read, err = f.parse(content); err != nil {
			err = fmt.Errorf("%s: %w", f.path, err)
		}
	}
	if err != nil {
		if problem := err.Error(); problem != f.problem {
			f.problem = problem
			f.why.Store(&problem)
			f.log.Error("grant keys not read: keeping the previous keys; without keys, all grants are rejected", "error", err)
		}
		return
	}
	f.content, f.problem = content, ""
	f.keys.Store(&read)
	f.log.Info("grant keys read", "file", f.path, "keys", read.ring.String())
}

func readKeyFile(path string, forbidden os.FileMode) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|nonBlocking, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: is not a regular file", path)
	case info.Mode().Perm()&forbidden != 0:
		return nil, fmt.Errorf("%s: its mode is %04o, and the bits %04o must be clear: chmod %04o", path, info.Mode().Perm(), forbidden, 0o444&^forbidden)
	case !isTrusted(info):
		return nil, fmt.Errorf("%s: must belong to root", path)
	}
	content, err := io.ReadAll(io.LimitReader(file, maxKeyFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxKeyFileBytes {
		return nil, fmt.Errorf("%s: more than %d bytes: two keys are enough", path, maxKeyFileBytes)
	}
	return content, nil
}
