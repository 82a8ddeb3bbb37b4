package grant

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// keyFileInterval is how often the file is looked at. It is read rather than
// watched: a Kubernetes Secret changes by a link two folders up, and a file system
// that comes over the network tells nobody.
const keyFileInterval = 2 * time.Second

// maxKeyFileBytes bounds what is read: two keys, and room for comments.
const maxKeyFileBytes = 64 << 10

// KeyFile is a Keyring that follows a file. It is a Verifier, safe for concurrent use.
type KeyFile struct {
	path string
	log  *slog.Logger
	ring atomic.Pointer[Keyring]
	why  atomic.Pointer[string] // the last look's problem, for Ready
	// What the last look found, so that it is reported once.
	content []byte
	problem string
}

// OpenKeyFile reads the keys (see ParseKeyring). The file must be a regular file of
// root's or of the caller's own that nobody else can write and only its group may
// read: 0400, 0440, 0600, 0640. One that is bad or gone leaves a KeyFile that verifies
// nothing, until it is good: Ready says why.
func OpenKeyFile(path string, log *slog.Logger) *KeyFile {
	f := &KeyFile{path: path, log: log}
	f.ring.Store(&Keyring{})
	f.Reload()
	return f
}

// Ready is nil once there are keys.
func (f *KeyFile) Ready() error {
	if len(f.ring.Load().keys) > 0 {
		return nil
	}
	return fmt.Errorf("no grant is believed, for there are no keys: %s", *f.why.Load())
}

// Verify implements Verifier by the keys that were read last.
func (f *KeyFile) Verify(podUID, node, payload, signature string) error {
	return f.ring.Load().Verify(podUID, node, payload, signature)
}

// Run follows the file until ctx ends. A file that is gone or bad changes
// nothing: the last good keys stay in force, and the log says why.
func (f *KeyFile) Run(ctx context.Context) {
	tick := time.NewTicker(keyFileInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.Reload()
		}
	}
}

// Reload looks at the file now. Run calls it; it must not run twice at once.
func (f *KeyFile) Reload() {
	content, err := readSecret(f.path)
	if err == nil && f.problem == "" && f.content != nil && bytes.Equal(content, f.content) {
		return
	}
	var ring Keyring
	if err == nil {
		if ring, err = ParseKeyring(content); err != nil {
			err = fmt.Errorf("%s: %w", f.path, err)
		}
	}
	if err != nil {
		if problem := err.Error(); problem != f.problem {
			f.problem = problem
			f.why.Store(&problem)
			f.log.Error("grant keys not taken over: the ones before stay in force, and without any no grant is believed", "reason", err)
		}
		return
	}
	f.content, f.problem = content, ""
	f.ring.Store(&ring)
	f.log.Info("grant keys read", "file", f.path, "keys", fmt.Sprint(ring))
}

// readSecret reads a file that only its owner and at most its group can read.
func readSecret(path string) ([]byte, error) {
	// Not blocking: a FIFO would keep the open waiting for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: is not a regular file", path)
	case info.Mode().Perm()&0o037 != 0:
		return nil, fmt.Errorf("%s: mode %04o: nobody but its owner may write it, and nobody but its owner and group may read it: chmod 0400", path, info.Mode().Perm())
	case !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
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

// Current is the key to sign with, of those that were read last; see Keyring.Current.
func (f *KeyFile) Current() Key { return f.ring.Load().Current() }
